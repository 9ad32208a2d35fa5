"""One attempt, from the fixed process environment to the script's last statement."""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from detrain import eventlog, hooks, ranks
from detrain.adapters import compiling, imports, library_loops, names, protocol
from detrain.adapters.loaded import Frameworks
from detrain.errors import AlreadyFinished, DetrainError, InexactResume, UsageError
from detrain.launch import beneath, environment, events, patched, script
from detrain.launch.beneath import Beneath
from detrain.launch.departing import Departure
from detrain.launch.opening import OpenRun
from detrain.launch.request import Request
from detrain.launch.signals import Signals
from detrain.loops import instfile
from detrain.loops.position import Position
from detrain.loops.stack import LoopStack
from detrain.messages import say, speak_as, warn
from detrain.outputs import journal
from detrain.outputs.following import OutputFiles
from detrain.rewrite.importer import Instrumenter, UserFinder
from detrain.session import ending, policy
from detrain.session.context import Context, Settings
from detrain.session.leaving import fail
from detrain.session.libraries import Libraries
from detrain.session.memory import limit_of
from detrain.session.pipelines import order_of
from detrain.session.replay import Replay, digest_of
from detrain.session.rerun import Rerun
from detrain.session.resume import OTHER_SOURCE, Resume, chain_to, plan
from detrain.session.session import Session
from detrain.session.trusting import Trusting
from detrain.state import patches
from detrain.state.patches import Patch
from detrain.store.directory import RunDirectory
from detrain.store.record import Change
from detrain.store.sources import SourceTexts
from detrain.world import aside, preload, setup_clock
from detrain.world.clocks import Clocks
from detrain.world.printing import Printing
from detrain.world.setup_clock import Answers

if TYPE_CHECKING:  # the one is loaded by ranks alone; the other loads numpy, which the script may not
    from detrain.launch.joining import Joining
    from detrain.store.checkpoint import Checkpoint

_HOOKS: dict[str, Callable[..., object]] = {
    "record_loop": hooks.record_loop,
    "record_epoch": hooks.record_epoch,
    "record_batch": hooks.record_batch,
    "enter_loop": hooks.enter_loop,
}


def main() -> None:
    """Entry point of `boot.py`."""
    request = Request.decode(os.environ.pop(environment.REQUEST))
    begun = environment.Begun()
    if request.report:
        from detrain.launch.tracing import Tracing

        Tracing(request).run()
        return
    speak_as(request.rank, is_quiet=request.quiet)
    aside.ends_with_this(request.statusline)
    try:
        if request.log_json:
            _log(request)
        attempt = _begin(request, begun)
    except AlreadyFinished as error:
        aside.end_all()
        if str(error):  # else rank 0 has said it
            say(str(error))
        sys.exit(error.exit_status)
    except DetrainError as error:
        aside.end_all()
        say(f"error: {error}")
        sys.exit(error.exit_status)
    attempt.run()


def _log(request: Request) -> None:
    try:
        eventlog.log_to(request.log_json, request.rank)
    except OSError as error:
        raise UsageError(f"--log-json {request.log_json} cannot be written: {error}") from None


def _begin(request: Request, begun: environment.Begun) -> Attempt:
    joining = None
    if request.job and request.goal is None:
        from detrain.launch.joining import Joining

        joining = Joining(request)
        request = replace(request, fresh=False)  # it has been moved aside
    try:
        attempt = Attempt(request, begun, joining)
    except InexactResume as error:
        if not request.may_restart or joining is not None:
            raise
        _restart(request, begun, error)
    attempt.begin()
    return attempt


def _restart(request: Request, begun: environment.Begun, why: InexactResume) -> NoReturn:
    """Start the run over, in this very process."""
    begun.put_back(request.defaults)
    preload.keep_seed()
    environment.replace_process(request.restarted(why.why))


class Attempt:
    """Prepares everything that stands around the script. Raises `DetrainError` before the script begins, or never."""

    def __init__(self, request: Request, begun: environment.Begun, joining: Joining | None = None) -> None:
        """`joining`: of one rank of several."""
        self.request, self.joining = request, joining
        self.begun = begun
        every = policy.parse(request.every)
        self.run_files = OpenRun(request)
        self.directory, self.record = self.run_files.directory, self.run_files.record
        if request.goal is not None and request.goal.window is not None:
            patched.read(self.directory.path)
        chain, changed = self._plan_chain()
        patched.move(chain)
        is_resuming = bool(chain)
        #: By the name of a checkpoint of the chain, what is elsewhere in each source file that is another one now.
        revisions = self._revise(chain, changed)
        info = self._read_info(is_resuming=is_resuming)
        self.run_files.write()  # from here on it is an attempt, and no refusal
        self._sources_changed = bool(changed)
        self.frameworks = Frameworks(entropy=preload if preload.is_loaded() else None)
        # Who names a checkpoint wants no other; and what old arguments made is known of the chosen ones alone.
        may_start_again = (
            request.goal is None and not request.start and request.olds is None and not request.trust_changes
        ) and joining is None  # the others cannot start again
        self.stack = LoopStack(info.parts(), info.nums_in_nest())
        when = policy.Policy(every, time.monotonic())
        self.member = joining.member(when.request, self._on_lost) if joining is not None else None
        within = Path(request.job) if request.job else None
        context = Context(
            self._settings(), self.directory, when, info, self.frameworks,
            OutputFiles(self.directory.path, within),
            Replay(info.extra, lambda: digest_of(self.frameworks.generators())), Position(),
            self.stack.is_user_file, self._start_again if may_start_again else None,
            (lambda error: _restart(request, begun, error)) if request.may_restart and joining is None else None,
            Libraries(self.frameworks.loaded), self.member, within,
            SourceTexts(self.directory.path) if joining is None and request.goal is None else None,
        )  # fmt: skip
        rerun = Rerun(context, request.goal, is_rank=request.size > 1) if request.goal is not None else None
        self.resume = Resume(
            context, chain, is_trusting=request.trusts, allows_pickle=not request.no_pickle,
            trusting=Trusting(self.record.invocation, self._changes(), self._read_olds()), rerun=rerun,
            on_resumed=self._on_resumed, revisions=revisions,
        )  # fmt: skip
        self.session = Session(context, self.stack, self.resume, rerun)
        self.arrivals = ending.Arrivals()
        departure = Departure(
            context.files,
            is_requeued=request.requeue,
            is_first=not request.rank,
            on_leaving=self._wait_for_remote,
        )
        self.signals = Signals(self.session, departure)
        if not (info.nests or is_resuming or request.goal is not None):
            self.record.found_after = None
        # A loop that is looked for again counts its batches in another way, if it is the same at all.
        is_anew = request.goal is None and (request.trust_changes or not info.nests)
        self.clocks = self.frameworks.clocks = Clocks(
            self.directory.path,
            context.position.counter,
            is_proof=request.goal is not None,
            is_anew=is_anew,
            is_counted_anew=self._is_to_find_loops(is_resuming=is_resuming),
        )
        self.answers = Answers(
            self.directory.path / setup_clock.NAME,
            self.record.process or os.getpid(),
            self.stack.is_user_file,
            names.names_files_by_process,
            self.clocks,
        )
        self.instrumenter = Instrumenter(
            info.parts(),
            self.directory.path / "cache",
            self._on_code,
            only_known=self._only_known(info),
            load_of=info.load_of,
            libraries=library_loops,
            aside=self.frameworks.hidden_from_script,
        )

    def _settings(self) -> Settings:
        request = self.request
        return Settings(
            Path(self.record.script), self.record.name, request.keep, self.record.invocation, self.record.attempts,
            is_other_invocation=self.run_files.is_other_invocation, on_inexact=request.on_inexact,
            memory_limit=limit_of(
                request.memory_budget, is_verified=request.remat_verify, planner=request.remat_planner
            )
            if request.memory_budget and (request.goal is None or request.goal.num_timed)
            else None,
            pipeline=order_of(request.pipeline, request.micro_batches, is_emulated=request.emulate)
            if request.pipeline
            else None,
            ends_s=request.ends_s,
            is_of_one_source=not (self._sources_changed or self.record.sources_changed_at or self._changes()),
        )  # fmt: skip

    # --- the run directory -------------------------------------------------------------------------------------------------

    def _plan_chain(self) -> tuple[list[Checkpoint], list[str]]:
        """The checkpoints to resume through; empty where the run begins. And the source files that have changed since the last of them.

        Raises `InexactResume` where none of those there can be used.
        """
        if self.joining is not None:
            chain, messages = chain_to(self.directory, self.joining.cut) if self.joining.cut else [], list[str]()
        else:
            chain, messages = plan(self.directory, self.request.start)
        for message in messages:
            warn("checkpoint-passed-over", message)
        if not chain and self.record.attempts > 1 and self.request.goal is None:
            say(f"no checkpoint yet: starting again from the beginning (attempt {self.record.attempts})")
        if chain and self.request.trusts:
            self._check_place(chain[-1].meta.sources)
        changed = self._changed(chain[-1].meta.sources) if chain else []
        told = ", ".join(self._told(name, chain[-1].meta.sources[name]) for name in changed)
        if changed and not self.request.trusts:
            raise InexactResume(
                f"the source has changed since {chain[-1].name}: {told}",
                OTHER_SOURCE,
            )
        if changed:
            warn(
                "source-changed",
                f"the source has changed since {chain[-1].name}: {told}. What the checkpoint holds is used, also where set-up code now "
                "makes other values. Until there is a new checkpoint, a resume needs --trust-changes again",
            )
        return chain, changed

    def _told(self, name: str, digest: str) -> str:
        from detrain.launch.revised import Revised

        return Revised(self.directory.path, {}).told(name, digest)

    def _revise(self, chain: Sequence[Checkpoint], changed: Sequence[str]) -> dict[str, dict[str, Patch]]:
        """Where the attempt goes on with other sources than a checkpoint was made with, find its lines in those of now.

        That is with --trust-changes, and behind it as long as a checkpoint is passed that was made before.
        """
        if not chain or (self.request.goal is not None and self.request.goal.window is not None):
            return {}
        now = {**chain[-1].meta.sources, **{name: instfile.digest_of(name) for name in changed}}
        if all(now.get(name) == digest for one in chain for name, digest in one.meta.sources.items()):
            return {}
        from detrain.launch.revised import Revised

        revisions = Revised(self.directory.path, now).move(chain)
        if revisions:
            patches.use(revisions.get(chain[0].name, {}))
        return revisions

    def _on_resumed(self) -> None:
        """The attempt goes on from its checkpoint, with the sources of now."""
        assert self.resume.checkpoint is not None
        self.record.go_on(self.resume.checkpoint.meta.batches, has_other_sources=self._sources_changed)
        self.run_files.on_resumed()
        if self._sources_changed:
            self.session.nests.write_info()

    def _check_place(self, sources: Mapping[str, str]) -> None:
        """Raises `UsageError` where the script lies elsewhere than the run's: loops are known by their files' paths.

        Trusted, it would train from the beginning to its end, and then be told that it has not come to its checkpoint.
        """
        if not self.request.script or self.request.goal is not None:
            return
        here = os.path.realpath(self.request.script)
        there = [name for name in sources if os.path.basename(name) == os.path.basename(here)]
        if there and here not in map(os.path.realpath, sources):
            raise UsageError(
                f"the run's script is {there[0]}, and this one is {here}: a run goes on only where its script lies at the same path. Put "
                "it there, or start over with --fresh (the old run is kept)"
            )

    def _changed(self, sources: Mapping[str, str]) -> list[str]:
        """Source files that are others now.

        Not those that the run itself has made and that are not there: an attempt may have been killed before its set-up code had made them
        again. What it makes of them this time is compared where the attempt resumes.
        """
        changed = instfile.changed_sources(sources)
        made = journal.paths_in(self.directory.path) if changed else set()
        changed = [name for name in changed if not patches.is_patched(name)]
        return [name for name in changed if os.path.exists(name) or os.path.realpath(name) not in made]

    def _changes(self) -> list[Change]:
        """The decisions to go on with other arguments: of this request, else those on record."""
        return self.record.changes if self.request.changes is None else self.request.changes

    def _read_olds(self) -> dict[str, object]:
        """What the old arguments made, where the run goes on with others (`detrain.proof.probing`)."""
        if self.request.olds is None:
            return {}
        with open(self.request.olds, encoding="utf-8") as file:
            olds: dict[str, object] = json.load(file)
        return olds

    def _read_info(self, *, is_resuming: bool) -> instfile.InstInfo:
        path = self.directory.path / "inst.info"
        if is_resuming and not path.exists():
            # Found by its first update, a loop has passed the checkpoint's place: all would be trained again, and then be refused.
            raise UsageError(
                f"{path} is missing, which says where the training's loops are, and without it no checkpoint can be resumed from. Put it "
                "back, or start over with --fresh (the old run is kept)"
            )
        if not path.exists() or self._is_to_find_loops(is_resuming=is_resuming):
            return instfile.InstInfo()
        info = instfile.read(path, Path(self.record.script).parent)
        changed = instfile.changed_sources(info.sources)
        if changed and not is_resuming:
            say(
                f"the source has changed ({', '.join(changed)}); searching for the training loop again{self._lost(info)}"
            )
            return instfile.InstInfo()
        if changed:
            from detrain.launch.revised import Revised

            Revised(self.directory.path, {}).move_info(info)
        instfile.check_lines(path, info, has_checkpoints=is_resuming)
        return info

    def _is_to_find_loops(self, *, is_resuming: bool) -> bool:
        """True if a run is done again from its beginning that did not know its loops there: batches are counted once they are found."""
        return self.request.goal is not None and not is_resuming and not self.record.only_known

    @staticmethod
    def _lost(info: instfile.InstInfo) -> str:
        """What is not found again with the loops, as the end of a sentence."""
        loader = info.extra.get("dataloader", {})
        if not loader or loader.get("persistent", True):
            return ""
        return f". The data loader {loader['full_name']}, whose batches would be replayed, is not: trace the script again for that"

    def _only_known(self, info: instfile.InstInfo) -> bool:
        """True if only the loops of the nest carry hooks; the same in all attempts of a run.

        Where a generator stands in its code is counted in instructions, and hooks are instructions.
        """
        if self.record.only_known is None:
            self.record.only_known = info.is_complete
            self.run_files.write()
        return self.record.only_known and info.is_complete

    # --- the script --------------------------------------------------------------------------------------------------------

    def _on_code(self, filename: str, code: types.CodeType) -> None:
        self.stack.add_file(filename, self.instrumenter.loops[filename])
        digest = self.instrumenter.digests[filename]
        self.session.context.info.sources[filename] = digest
        content = self.instrumenter.contents.pop(filename)
        if self.session.context.texts is not None:
            self.session.context.texts.add(digest, content)
        from detrain.state import user_code

        user_code.user_code[filename] = code

    def run(self) -> None:
        """Run the script to its end; what leaves it leaves this function."""
        status: object = 1
        is_interrupted = False
        try:
            if self.request.module:
                script.run_module(self.request.module, self.request.arguments)
            else:
                script.run_file(self.request.script, self.request.arguments, self.instrumenter.compile)
            status = 0
        except SystemExit as leaving:
            # As Python does it: a text is printed, and the status is 1.
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
            if status == 2 and self.request.hint and self.session.recorder is None:  # it has not trained
                say(self.request.hint)
            raise
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            self._end(status, is_interrupted=is_interrupted)

    def begin(self) -> None:
        """Make the world as the first attempt found it, and begin to watch. Raises `DetrainError` before the script begins."""
        session = self.session
        eventlog.note(
            "began", attempt=self.record.attempts, directory=str(self.directory.path), script=self.request.script or self.request.module,
            arguments=self.request.arguments,
        )  # fmt: skip
        hooks.session = session
        for name, function in _HOOKS.items():
            setattr(builtins, f"__detrain_{name}__", function)
        random.seed(self.request.rank_seed)
        if not self.request.leave_files:
            session.context.files.rewind(is_resuming=self.resume.is_pending)
        if self.member is not None:
            self.member.begin()
            self.member.ready()
        settings = protocol.Settings(
            self.request.rank_seed,
            not self.request.nondeterministic,
            preload.key_entropy,
            preload.outlast,
            self._on_group,
            self._on_uneven,
            has_memory_budget=bool(self.request.memory_budget),
        )
        sys.meta_path.insert(0, UserFinder(self.instrumenter, self._on_module))
        imports.watch_imports(
            lambda name: imports.prepare(name, self.frameworks, settings, session),
            {**beneath.PROCESS_MODULES, **compiling.teachers(_HOOKS.values())},
        )
        os.register_at_fork(after_in_child=self._stop)
        session.on_training = self._begin_training
        if self.request.requeue:
            self.signals.listen()
        for path in session.context.files.folders():
            preload.own_folder(path)
        below = Beneath(self.request.script or "", self._on_ranks_below)
        events.hear({**below.handlers(), **({} if self.request.leave_files else session.context.files.handlers())})
        if self.frameworks.entropy is not None:
            # What the launch has taken is none of the script's, and may be more in this attempt than in another.
            preload.set_entropy_state((0, 0))
            preload.set_entropy_of_threads((0, 0))
        else:
            warn(
                "no-preload",
                f"{preload.why_not()}: what the script reads from the system (entropy, the order of folders, the clock) may differ in a "
                "later attempt",
            )
        self.answers.begin()
        self.frameworks.printing = Printing(
            self.directory.path,
            session.context.position.counter,
            attempt=self.record.attempts,
            is_resuming=self.resume.is_pending,
        )

    def _begin_training(self) -> None:
        self.session.context.files.is_in_loop = True
        with self.frameworks.hidden_from_script():
            found_after = self._record_beginning()
            target = self.resume.target if self.resume.takes_over else None
            self.clocks.begin_loop(
                found_after,
                is_resuming=self.resume.is_pending,
                shared=(target.meta.batches, target.meta.clocks) if target is not None else None,
            )
        self.signals.listen()
        self.arrivals.begin()
        self.session.end_asked_for = self.arrivals.ending

    def _on_lost(self, why: str, is_teller: bool) -> None:
        """The job has lost a rank: for the report, unless all are being ended. Called by the thread that listens to the others.

        `is_teller`: of all ranks this one says it.
        """
        from detrain.store import job

        is_leaving = self.member is not None and self.member.agreement.is_last
        if not self.arrivals.ending() and not is_leaving:
            job.note_lost(self.directory.path, self.record.attempts, why)
            if is_teller:  # a launcher says much, but not this
                say(
                    f"{why}, so all end; after a kill the same command resumes from the last checkpoint that all have written"
                )

    def _on_group(self, size: int) -> None:
        """The script joins a group of so many processes; in a forked child nothing is checkpointed anyway."""
        if size > 1 and self.request.size == 1 and not self.session.is_off:
            fail(self.session.context.files, UsageError(ranks.refusal("a process group was initialised", size)))

    def _on_ranks_below(self, size: int) -> None:
        """The script is about to start itself as further ranks, of which it is the first (Lightning does)."""
        if self.request.size == 1 and not self.session.is_off:
            fail(self.session.context.files, UsageError(ranks.refusal("the script starts itself again", size)))

    def _on_uneven(self) -> None:
        """The ranks are about to have unequal numbers of batches, and so no header in common."""
        if self.member is not None and not self.session.is_off and not self.member.agreement.is_out:
            self.member.agreement.leave()
            if not self.request.rank:
                warn(
                    "ranks-out-of-step",
                    "the script joins ranks that have unequal numbers of batches, so they cannot checkpoint together: from here on "
                    "nothing is checkpointed. Give all ranks as many batches (a DistributedSampler does)",
                )

    def _start_again(self) -> NoReturn:
        self.begun.put_back(self.request.defaults)
        preload.keep_seed()
        environment.replace_process(self.request)

    def _record_beginning(self) -> int:
        """Batches that the first attempt had counted when it found its loop; of the first attempt itself, those until now."""
        if self.record.found_after is None:
            self.record.found_after = self.session.context.position.batches
            try:
                self.run_files.write()
            except OSError as error:
                warn("clock-not-noted", f"the time at which the training loop was found cannot be recorded: {error}")
        return self.record.found_after

    def _stop(self) -> None:
        """Take part in nothing any more: in a forked child, or once the script has ended."""
        self.session.stop()
        self.answers.stop()
        self.clocks.stop()

    def _on_module(self, name: str) -> None:
        from detrain.state import user_code

        user_code.user_modules.add(name)

    def _end(self, status: object, *, is_interrupted: bool) -> None:
        session = self.session
        if session.is_off:
            return  # a forked child that leaves through the script's end
        session.end()
        is_done = ending.is_finished(session, status, self.arrivals.ending())
        if self.member is not None:
            is_done = self.member.end(int(status) if isinstance(status, int) else 1, is_finished=is_done) and is_done
        self._wait_for_remote()  # in a job the last cut is there only now
        aside.end_all()
        was_pending = self.resume.is_pending
        if session.rerun is not None:
            session.rerun.at_end()
        self._stop()
        if was_pending:
            session.context.files.give_up()
        if was_pending and status == 0:
            # It stays: what the script lacked this time, and ended for in good order, may be there the next time.
            say(
                f"error: the script has ended without reaching the position of {self.resume.target.name if self.resume.target else '?'}; "
                "this attempt did not continue the run"
            )
            sys.stdout.flush()
            os._exit(1)
        signal_name = self.arrivals.ending()
        if not session.nests.has_nest and status == 0:
            say(f"no training loop was seen, so nothing was checkpointed: {session.nests.why_nothing()}")
        else:
            ending.say_last(session, status, signal_name, is_interrupted=is_interrupted)
        eventlog.note("ended", status=status if isinstance(status, int) else 1, is_finished=is_done)
        if is_done:
            session.context.info.is_complete = True
            session.nests.write_info()
            if not self.request.rank:
                self._mark_finished()

    def _wait_for_remote(self) -> None:
        """Have the last checkpoint published, where the run is; for no longer than a minute."""
        request = self.request
        if request.remote and request.goal is None and not request.rank:
            from detrain.remote.waiting import wait_until_published

            wait_until_published(Path(request.job) if request.job else self.directory.path, request.remote)

    def _mark_finished(self) -> None:
        """Note the end; by the very last act of this process, if the preload is there to do it."""
        try:
            directory = RunDirectory(Path(self.request.job)) if self.request.job else self.directory
            prepared, final = directory.prepare_end(time.strftime("%Y-%m-%d %H:%M:%S %z"))
            if not preload.rename_at_exit(prepared, final):
                prepared.replace(final)
        except OSError as error:
            warn("checkpoint-failed", f"the end of the run cannot be recorded in {self.directory.path}: {error}")
