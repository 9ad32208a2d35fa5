"""One attempt, from the fixed process environment to the script's last statement."""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from detrain import hooks, ranks
from detrain.adapters import imports, library_loops, protocol
from detrain.adapters.loaded import Frameworks
from detrain.errors import AlreadyFinished, DetrainError, ResumeRefused, UsageError
from detrain.launch import beneath, environment, events, script
from detrain.launch.beneath import Beneath
from detrain.launch.signals import Signals
from detrain.loops import instfile
from detrain.messages import say, warn
from detrain.rewrite.importer import Instrumenter, UserFinder
from detrain.session import ending, policy
from detrain.session.goal import Rerun
from detrain.session.resume import Resume, fail, plan
from detrain.session.session import Session, Settings
from detrain.session.trusting import Change, Trusting, Way, way_changes
from detrain.store.directory import RunDirectory
from detrain.world import preload
from detrain.world.clocks import Clocks
from detrain.world.printing import Printing
from detrain.world.setup_clock import Answers

_HOOKS = {
    "record_loop": hooks.record_loop,
    "record_epoch": hooks.record_epoch,
    "record_batch": hooks.record_batch,
    "enter_loop": hooks.enter_loop,
}


def main() -> None:
    """Entry point of `boot.py`."""
    request = json.loads(os.environ.pop(environment.REQUEST))
    begun = environment.Begun()
    if request.get("report"):
        from detrain.launch.tracing import Tracing

        Tracing(request).run()
        return
    try:
        attempt = Attempt(request, begun)
        attempt.begin()
    except AlreadyFinished as error:
        say(str(error))
        sys.exit(error.exit_status)
    except DetrainError as error:
        say(f"error: {error}")
        sys.exit(error.exit_status)
    attempt.run()


class Attempt:
    """Prepares everything that stands around the script. Raises `DetrainError` before the script begins, or never."""

    #: The record of the run that this attempt goes on with, as the last attempt has left it.
    _before: dict[str, Any] | None = None

    def __init__(self, request: dict[str, Any], begun: environment.Begun) -> None:
        self.request = request
        self.begun = begun
        self.directory = RunDirectory(Path(os.path.abspath(request["ckpt_dir"])))
        every = policy.parse(request["every"])
        self._lock()
        self.record = self._open_record()
        self.resume = self._plan_resume()
        info = self._read_info()
        settings = Settings(
            script=Path(self.record["script"]), script_name=self.record["name"], keep=request["keep"],
            record=self.record, is_other_way=self._before is not None and way_changes(self._before, self.record),
        )  # fmt: skip
        self.frameworks = Frameworks(entropy=preload if preload.is_loaded() else None)
        self.session = Session(
            settings, self.directory, policy.Policy(every, time.monotonic()), info, self.frameworks, self.resume
        )
        if request.get("rerun"):
            self.session.rerun = Rerun(self.directory.path, request["rerun"])
        elif not request["from"] and "olds" not in request:
            # Who names a checkpoint wants no other; and what old arguments made is known of the chosen ones alone.
            self.session.start_again = self._start_again
        self.arrivals = ending.Arrivals()
        if not (info.nests or self.resume.is_pending or request.get("rerun")):
            self.record["found_after"] = None
        # A loop that is looked for again counts its batches in another way, if it is the same at all.
        is_anew = not request.get("rerun") and (request["trust_changes"] or not info.nests)
        self.clocks = self.frameworks.clocks = Clocks(
            self.directory.path,
            self.session.counter,
            is_proof=bool(request.get("rerun")),
            is_anew=is_anew,
            is_counted_anew=self._is_to_find_loops(),
        )
        self.answers = Answers(
            self.directory.path / "answers.log", self.record["process"], self.session.is_user_file, self.clocks
        )
        self.instrumenter = Instrumenter(
            info.parts(),
            self.directory.path / "cache",
            self._on_code,
            only_known=self._only_known(info),
            load_of=info.load_of,
            function_in=library_loops.function_in,
            aside=self.frameworks.aside,
        )

    # --- the run directory -------------------------------------------------------------------------------------------------

    def _lock(self) -> None:
        try:
            self.directory.lock()
        except OSError as error:
            raise UsageError(
                f"the run directory {self.directory.path} cannot be written: {error}. Nothing was started; choose another "
                "with --ckpt-dir"
            ) from None

    def _open_record(self) -> dict[str, Any]:
        # Not read where the run is to start over: that is also the way out of a record that cannot be read.
        before = None if self.request["fresh"] else self.directory.read_record()
        if self.request["fresh"]:
            self._move_aside()
        record = self._new_record()
        self._take_traced()
        if before is None:
            self.directory.write_record(record)
            return record
        self.directory.remove_temporaries()
        changed = [
            f"{name} was {before[name]!r}, is {record[name]!r}"
            for name in ("script", "arguments", "folder", "seed")
            if before[name] != record[name]
        ]
        if before["command"].get("leave_files", False) != record["command"]["leave_files"]:
            # What the one kind of attempt has not noted the other cannot undo.
            changed.append(
                "--leave-files was "
                + ("not given, is now" if record["command"]["leave_files"] else "given, is not now")
            )
        is_finished = bool(self.directory.finished_at())
        if changed and not self.request["trust_changes"] and (is_finished or self.directory.checkpoint_paths()):
            raise ResumeRefused(
                f"{self.directory.path} holds a run of another command: {'; '.join(changed)}. Start over with "
                "--fresh (the old run is kept), go on all the same with --trust-changes, or choose another directory with --ckpt-dir"
            )
        if is_finished and not (self.request["trust_changes"] and way_changes(before, self.request)):
            self._end_at_once(Path(before["script"]).parent)
        is_begun_again = not (self.directory.checkpoint_paths() or self.request.get("rerun"))
        if is_begun_again and before.get("entropy") != record["entropy"]:
            # Another program: it draws other numbers, and what the first one did is nothing to be compared with.
            (self.directory.path / "ledger").unlink(missing_ok=True)
        record["attempts"] = before["attempts"] + 1
        record["began"] = before["began"]
        record["process"] = before.get("process", record["process"])
        if (self.directory.checkpoint_paths() or self.request.get("rerun")) and not self.request["trust_changes"]:
            record["machine"] = before.get("machine", record["machine"])
        record["only_known"] = before.get("only_known", False)
        record["found_after"] = before.get("found_after")
        record["changes"] = before.get("changes", [])
        self._before = before
        self._write_record(record)
        return record

    def _move_aside(self) -> None:
        self.directory.unlock()
        aside = self.directory.move_aside()
        self.directory.lock()
        if aside is not None:
            instfile.hand_on(aside / "inst.info", self.directory.path / "inst.info")
            say(f"starting over; the earlier run is kept in {aside} (--fresh)")

    def _take_traced(self) -> None:
        """A run's own directory begins with the loops that were traced in the script's, whatever arguments it was traced with."""
        if not self.request.get("traced_in") or self.directory.checkpoint_paths() or self.directory.finished_at():
            return
        traced, own = Path(self.request["traced_in"]) / "inst.info", self.directory.path / "inst.info"
        if traced.exists() and (not own.exists() or traced.stat().st_mtime_ns > own.stat().st_mtime_ns):
            instfile.hand_on(traced, own)

    def _end_at_once(self, folder: Path) -> NoReturn:
        """The run has come to its end. Raises `AlreadyFinished`, or `ResumeRefused` where the script is another by now."""
        path = self.directory.path / "inst.info"
        info = instfile.read(path, folder) if path.exists() else instfile.InstInfo()
        changed = [name for name, digest in info.sources.items() if instfile.digest_of(name) != digest]
        ended = f"the run in {self.directory.path} came to its end at {self.directory.finished_at()}"
        if changed:
            raise ResumeRefused(
                f"{ended}, and the source has changed since ({', '.join(changed)}). Train again with --fresh (the old run is kept), or "
                "choose another directory with --ckpt-dir"
            )
        raise AlreadyFinished(f"{ended}: nothing is left to do. Train again with --fresh, which keeps the old run")

    def _write_record(self, record: dict[str, Any]) -> None:
        """Until an attempt with other arguments has resumed, the run is one of the old arguments."""
        is_on_its_way = self._before is not None and bool(self.directory.checkpoint_paths())
        told = Way.of(self._before).told() if is_on_its_way and self._before is not None else {}
        self.directory.write_record({**record, **told})

    def _has_resumed(self) -> None:
        """The attempt goes on from its checkpoint: from now on the run is one of its arguments."""
        assert self._before is not None
        if way_changes(self._before, self.record):
            (self.directory.path / "finished").unlink(missing_ok=True)
        self._before = None
        self.record["changes"] = self.request.get("changes", self.record["changes"])
        self.directory.write_record(self.record)

    def _new_record(self) -> dict[str, Any]:
        script_path = os.path.abspath(self.request["script"]) if self.request["script"] else self.request["module"]
        return {
            "script": script_path,
            "name": self.request["name"],
            "command": {
                "script": self.request["script"],
                "module": self.request["module"],
                "nondeterministic": self.request["nondeterministic"],
                "leave_files": self.request["leave_files"],
                "interpreter": environment.interpreter_flags(sys.orig_argv[1:]),
            },
            "arguments": self.request["arguments"],
            "folder": os.getcwd(),
            "seed": self.request["seed"],
            "entropy": self.request["entropy"],
            "every": self.request["every"],
            "began": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "process": os.getpid(),
            "attempts": 1,
            "machine": self.request["machine"],
            "is_address_space_fixed": self.request["is_address_space_fixed"],
            "is_preloaded": preload.is_loaded(),
            "only_known": None,
            # Batches that the first attempt had counted when it knew its loop: what it read until then it took for the set-up's.
            "found_after": None,
            # What was decided where the run went on with other arguments (`detrain.session.trusting`).
            "changes": [],
        }

    def _plan_resume(self) -> Resume:
        targets, messages = plan(self.directory, self.request["from"])
        for message in messages:
            warn("checkpoint-passed-over", message)
        if not targets and self.record["attempts"] > 1 and not self.request.get("rerun"):
            say(f"no checkpoint yet: starting again from the beginning (attempt {self.record['attempts']})")
        sources = targets[-1].meta["sources"] if targets else {}
        changed = sorted(name for name, digest in sources.items() if instfile.digest_of(name) != digest)
        if changed and not self.request["trust_changes"]:
            raise ResumeRefused(
                f"the source has changed since {targets[-1].name}: {', '.join(changed)}. Start over with --fresh (the old run "
                "is kept), or "
                "go on from the checkpoint with --trust-changes"
            )
        if changed:
            warn(
                "source-changed",
                f"the source has changed since {targets[-1].name} ({', '.join(changed)}): where its set-up code makes another value now, "
                "the checkpoint's wins",
            )
        resume = Resume(
            targets, is_trusting=self.request["trust_changes"], allows_pickle=not self.request["no_pickle"],
            trusting=Trusting(Way.of(self.record), Change.read({**self.record, **self.request}), self._read_olds()),
        )  # fmt: skip
        resume.on_resumed = self._has_resumed
        return resume

    def _read_olds(self) -> dict[str, Any]:
        """What the old arguments made, where the run goes on with others (`detrain.proof.probing`)."""
        if "olds" not in self.request:
            return {}
        with open(self.request["olds"], encoding="utf-8") as file:
            olds: dict[str, Any] = json.load(file)
        return olds

    def _read_info(self) -> instfile.InstInfo:
        path = self.directory.path / "inst.info"
        if not path.exists() or self._is_to_find_loops():
            return instfile.InstInfo()
        info = instfile.read(path, Path(self.record["script"]).parent)
        changed = [name for name, digest in info.sources.items() if instfile.digest_of(name) != digest]
        if changed and not self.resume.is_pending:
            say(
                f"the source has changed ({', '.join(changed)}); the training loop is looked for again{self._lost(info)}"
            )
            return instfile.InstInfo()
        instfile.check_lines(path, info)
        return info

    def _is_to_find_loops(self) -> bool:
        """True if a run is done again from its beginning that did not know its loops there: batches are counted once they are found."""
        return bool(self.request.get("rerun")) and not self.resume.is_pending and not self.record["only_known"]

    @staticmethod
    def _lost(info: instfile.InstInfo) -> str:
        """What a look for the loops does not find again."""
        loader = info.extra.get("dataloader", {})
        if not loader or loader.get("persistent", True):
            return ""
        return f". The data loader {loader['full_name']}, whose batches would be replayed, is not: trace the script again for that"

    def _only_known(self, info: instfile.InstInfo) -> bool:
        """True if only the loops of the nest carry hooks; the same in all attempts of a run.

        Where a generator stands in its code is counted in instructions, and hooks are instructions.
        """
        if self.record["only_known"] is None:
            self.record["only_known"] = info.is_complete
            self._write_record(self.record)
        return self.record["only_known"] and info.is_complete

    # --- the script --------------------------------------------------------------------------------------------------------

    def _on_code(self, filename: str, code: Any) -> None:
        self.session.know_loops(filename, self.instrumenter.loops[filename])
        self.session.info.sources[filename] = self.instrumenter.digests[filename]
        from detrain.state import user_code

        user_code.user_code[filename] = code

    def run(self) -> None:
        """Run the script to its end; what leaves it leaves this function."""
        status: Any = 1
        is_interrupted = False
        try:
            if self.request["module"]:
                script.run_module(self.request["module"], self.request["arguments"])
            else:
                script.run_file(self.request["script"], self.request["arguments"], self.instrumenter.compile)
            status = 0
        except SystemExit as leaving:
            # As Python does it: a text is printed, and the status is 1.
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if status == 2 and self.request.get("hint") and self.session.recorder is None:  # it has not trained
                say(self.request["hint"])
            raise
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            self._end(status, is_interrupted=is_interrupted)

    def begin(self) -> None:
        """Make the world as the first attempt found it, and begin to watch. Raises `DetrainError` before the script begins."""
        session = self.session
        hooks.session = session
        for name, function in _HOOKS.items():
            setattr(builtins, f"__detrain_{name}__", function)
        random.seed(self.request["seed"])
        if not self.request["leave_files"]:
            session.files.rewind(is_resuming=self.resume.is_pending)
        settings = protocol.Settings(
            self.request["seed"],
            not self.request["nondeterministic"],
            preload.key_entropy,
            preload.outlast,
            self._on_group,
        )
        sys.meta_path.insert(0, UserFinder(self.instrumenter, self._on_module))
        imports.watch_imports(
            lambda name: imports.prepare(name, self.frameworks, settings, session), beneath.PROCESS_MODULES
        )
        os.register_at_fork(after_in_child=self._stop)
        session.on_training = self._begin_training
        for path in session.files.folders():
            preload.own_folder(path)
        events.hear({**Beneath().handlers(), **({} if self.request["leave_files"] else session.files.handlers())})
        if self.frameworks.entropy is not None:
            # What the launch has taken is none of the script's, and may be more in this attempt than in another.
            preload.set_entropy_state((0, 0))
            preload.set_entropy_of_threads((0, 0))
        else:
            warn(
                "no-preload",
                f"{preload.why_not()}: what the script asks of the system (entropy, the order of folders, the clock) may differ in a later "
                "attempt",
            )
        self.answers.begin()
        self.frameworks.printing = Printing(
            self.directory.path, session.counter, attempt=self.record["attempts"], is_resuming=self.resume.is_pending
        )

    def _begin_training(self) -> None:
        self.session.files.is_in_loop = True
        with self.frameworks.aside():
            self._note_beginning()
            goal = self.resume.goal if self.resume.takes_over else None
            self.clocks.begin_loop(
                self.record["found_after"],
                is_resuming=self.resume.is_pending,
                goal=goal.meta if goal is not None else None,
            )
        Signals(self.session).listen()
        self.arrivals.begin()

    def _on_group(self, size: int) -> None:
        """The script joins a group of so many processes; in a forked child nothing is checkpointed anyway."""
        if size > 1 and not self.session.is_off:
            fail(self.session, UsageError(ranks.refusal("a process group was initialised", size)))

    def _start_again(self) -> NoReturn:
        self.begun.put_back(self.request["defaults"])
        environment.replace_process(self.request)

    def _note_beginning(self) -> None:
        if self.record["found_after"] is not None:
            return
        self.record["found_after"] = self.session.batches
        try:
            self._write_record(self.record)
        except OSError as error:
            warn("clock-not-noted", f"when the training loop was found cannot be noted: {error}")

    def _stop(self) -> None:
        """Take part in nothing any more: in a forked child, or once the script has ended."""
        self.session.stop()
        self.answers.stop()
        self.clocks.stop()

    def _on_module(self, name: str) -> None:
        from detrain.state import user_code

        user_code.user_modules.add(name)

    def _end(self, status: Any, *, is_interrupted: bool) -> None:
        session = self.session
        if session.is_off:
            return  # a forked child that leaves through the script's end
        session.end()
        was_pending = self.resume.is_pending
        if session.rerun is not None:
            session.rerun.write(session, is_stopped=False)
        self._stop()
        if was_pending:
            session.files.give_up()
        if was_pending and status == 0:
            # It stays: what the script lacked this time, and ended for in good order, may be there the next time.
            say(
                f"error: the script has ended without coming to the position of {self.resume.goal.name if self.resume.goal else '?'}; "
                "what it did now is not a continuation of the run"
            )
            sys.stdout.flush()
            os._exit(1)
        signal_name = self.arrivals.ending()
        if not session.has_nest and status == 0:
            say(f"no training loop was seen, so nothing was checkpointed: {session.why_nothing()}")
        else:
            ending.say_last(session, status, signal_name, is_interrupted=is_interrupted)
        if ending.is_finished(session, status, signal_name):
            session.info.is_complete = True
            session.write_info()
            self._mark_finished()

    def _mark_finished(self) -> None:
        """Note the end; by the very last act of this process, if the preload is there to do it."""
        try:
            prepared, final = self.directory.prepare_end(time.strftime("%Y-%m-%d %H:%M:%S %z"))
            if not preload.rename_at_exit(prepared, final):
                prepared.replace(final)
        except OSError as error:
            warn("checkpoint-failed", f"the end of the run cannot be noted in {self.directory.path}: {error}")
