"""One attempt, from the fixed process environment to the script's last statement."""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from detrain import adapters, hooks, instfile
from detrain.errors import DetrainError, ResumeRefused, UsageError
from detrain.launch import environment, frameworks, preload, script
from detrain.launch.answers import Answers
from detrain.launch.clocks import Clocks
from detrain.launch.signals import Signals
from detrain.rewrite.importer import Instrumenter, UserFinder
from detrain.session import policy
from detrain.session.messages import say, warn
from detrain.session.rerun import Rerun
from detrain.session.resume import Resume, plan
from detrain.session.session import Frameworks, Session, Settings
from detrain.store import printed
from detrain.store.directory import RunDirectory

_HOOKS = {
    "record_loop": hooks.record_loop,
    "record_epoch": hooks.record_epoch,
    "record_batch": hooks.record_batch,
    "enter_loop": hooks.enter_loop,
}


def main() -> None:
    """Entry point of `boot.py`."""
    request = json.loads(os.environ.pop(environment.REQUEST))
    if request.get("report"):
        from detrain.launch.tracing import Tracing

        Tracing(request).run()
        return
    try:
        attempt = Attempt(request)
        attempt.begin()
    except DetrainError as error:
        say(f"error: {error}")
        sys.exit(error.exit_status)
    attempt.run()


class Attempt:
    """Prepares everything that stands around the script. Raises `DetrainError` before the script begins, or never."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.directory = RunDirectory(Path(os.path.abspath(request["ckpt_dir"])))
        self.script_path = Path(request["script"] or request["module"])
        every = policy.parse(request["every"])
        self._lock()
        self.record = self._open_record()
        self.resume = self._plan_resume()
        info = self._read_info()
        settings = Settings(
            script=Path(self.record["script"]), script_name=self.record["name"], keep=request["keep"],
            record=self.record,
        )  # fmt: skip
        self.frameworks = Frameworks(entropy=preload if preload.is_loaded() else None)
        self.session = Session(
            settings, self.directory, policy.Policy(every, time.monotonic()), info, self.frameworks, self.resume
        )
        if request.get("rerun"):
            self.session.rerun = Rerun(self.directory.path, request["rerun"])
        if not (info.nests or self.resume.is_pending or request.get("rerun")):
            self.record["found_after"] = None
        # A loop that is looked for again counts its batches in another way, if it is the same at all.
        is_anew = request["trust_changes"] or not (info.nests or request.get("rerun"))
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
            function_in=adapters.function_in,
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
        if self.request["fresh"] or (before is not None and self.directory.finished_at()):
            why = "--fresh" if self.request["fresh"] else "it had come to its end"
            self.directory.unlock()
            aside = self.directory.move_aside()
            self.directory.lock()
            if aside is not None:
                instfile.hand_on(aside / "inst.info", self.directory.path / "inst.info")
                say(f"starting over; the earlier run is kept in {aside} ({why})")
            before = None
        record = self._new_record()
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
        if changed and not self.request["trust_changes"] and self.directory.checkpoint_paths():
            raise ResumeRefused(
                f"{self.directory.path} holds a run of another command: {'; '.join(changed)}. Start over with "
                "--fresh (the old run is kept), go on all the same with --trust-changes, or choose another directory with --ckpt-dir"
            )
        record["attempts"] = before["attempts"] + 1
        record["began"] = before["began"]
        record["process"] = before.get("process", record["process"])
        if (self.directory.checkpoint_paths() or self.request.get("rerun")) and not self.request["trust_changes"]:
            record["machine"] = before.get("machine", record["machine"])
        record["only_known"] = before.get("only_known", False)
        record["found_after"] = before.get("found_after")
        self.directory.write_record(record)
        return record

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
        }

    def _plan_resume(self) -> Resume:
        targets, messages = plan(self.directory, self.request["from"])
        for message in messages:
            warn("checkpoint-passed-over", message)
        if targets and not self.request["trust_changes"]:
            changed = sorted(
                name for name, digest in targets[-1].meta["sources"].items() if instfile.digest_of(name) != digest
            )
            if changed:
                raise ResumeRefused(
                    f"the source has changed since {targets[-1].name}: {', '.join(changed)}. Start over with --fresh (the old run "
                    "is kept), or "
                    "go on from the checkpoint with --trust-changes"
                )
        return Resume(targets, is_trusting=self.request["trust_changes"], allows_pickle=not self.request["no_pickle"])

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
            self.directory.write_record(self.record)
        return self.record["only_known"] and info.is_complete

    # --- the script --------------------------------------------------------------------------------------------------------

    def _on_code(self, filename: str, code: Any) -> None:
        self.session.know_loops(filename, self.instrumenter.loops[filename])
        self.session.info.sources[filename] = self.instrumenter.digests[filename]
        from detrain.state import known_source

        known_source.user_code[filename] = code

    def run(self) -> None:
        """Run the script to its end; what leaves it leaves this function."""
        status: Any = 1
        try:
            if self.request["module"]:
                script.run_module(self.request["module"], self.request["arguments"])
            else:
                script.run_file(self.request["script"], self.request["arguments"], self.instrumenter.compile)
            status = 0
        except SystemExit as leaving:
            status = leaving.code or 0
            raise
        finally:
            self._end(status)

    def begin(self) -> None:
        """Make the world as the first attempt found it, and begin to watch. Raises `DetrainError` before the script begins."""
        session = self.session
        hooks.session = session
        for name, function in _HOOKS.items():
            setattr(builtins, f"__detrain_{name}__", function)
        random.seed(self.request["seed"])
        if not self.request["leave_files"]:
            session.files.rewind(is_resuming=self.resume.is_pending)
        settings = adapters.Settings(
            self.request["seed"], not self.request["nondeterministic"], preload.key_entropy, preload.outlast
        )
        sys.meta_path.insert(0, UserFinder(self.instrumenter, self._on_module))
        frameworks.watch_imports(lambda name: frameworks.prepare(name, self.frameworks, settings, session))
        os.register_at_fork(after_in_child=self._stop)
        session.on_training = self._begin_training
        for path in session.files.folders():
            preload.own_folder(path)
        if not self.request["leave_files"]:
            session.files.watch()
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
        printed.cut_torn(self.directory.path / printed.NAME)
        preload.note_printed(self.directory.path / printed.NAME, printed.MOST_BYTES)

    def _begin_training(self) -> None:
        self.session.files.is_in_loop = True
        with self.frameworks.aside():
            self._note_beginning()
            self.clocks.begin_loop(self.record["found_after"], is_resuming=self.resume.is_pending)
        Signals(self.session).listen()

    def _note_beginning(self) -> None:
        if self.record["found_after"] is not None:
            return
        self.record["found_after"] = self.session.batches
        try:
            self.directory.write_record(self.record)
        except OSError as error:
            warn("clock-not-noted", f"when the training loop was found cannot be noted: {error}")

    def _stop(self) -> None:
        """Take part in nothing any more: in a forked child, or once the script has ended."""
        self.session.stop()
        self.answers.stop()
        self.clocks.stop()

    def _on_module(self, name: str) -> None:
        from detrain.state import known_source

        known_source.user_modules.add(name)

    def _end(self, status: Any) -> None:
        session = self.session
        if session.is_off:
            return  # a forked child that leaves through the script's end
        session.settle()
        was_pending = self.resume.is_pending
        if session.rerun is not None:
            session.rerun.write(session, is_stopped=False)
        self._stop()
        if was_pending:
            session.files.give_up()
        if was_pending and status == 0:
            say(
                f"error: the script has ended without coming to the position of {self.resume.goal.name if self.resume.goal else '?'}; "
                "what it did now is not a continuation of the run"
            )
            sys.stdout.flush()
            os._exit(1)
        if not session.has_nest and status == 0:
            say(f"no training loop was seen, so nothing was checkpointed: {session.why_nothing()}")
        if status == 0 and session.has_nest:
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
