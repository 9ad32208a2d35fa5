"""How a job begins: rank 0 hears what each rank is about to run and holds, and decides for all where they begin, or that they do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from detrain.errors import AlreadyFinished, DetrainError, InexactResume, ResumeRefused, UsageError
from detrain.job.line import Hub, Spoke
from detrain.job.messages import Answer, Hello, Propose, Start
from detrain.job.place import Place
from detrain.messages import say
from detrain.store.directory import free_name_beside
from detrain.store.job import Manifest, Manifests

CanBegin = Callable[[str, str], str]
#: How long ranks wait for each other before the script begins. Seconds.
LONGEST_WAIT_S = 600.0
#: What all ranks have to be given alike, and what it is called.
_COMMON = (
    ("version", "another version of detrain"),
    ("program", "another script"),
    ("arguments", "other arguments"),
    ("seed", "another --seed"),
    ("every", "another --every"),
    ("options", "other options"),
    ("key", "a different version of the script"),
)


@dataclass(frozen=True)
class Wish:
    """What the command line asks rank 0 for."""

    #: Start over; the old run is kept.
    is_fresh: bool = False
    #: `--from`: the cut to begin at; "" for the latest.
    start: str = ""
    #: When the job came to its end; "" if it has not.
    finished: str = ""
    #: Number of ranks that the directory's job has; 0 if there is none.
    size: int = 0
    #: There is something in the directory that is kept when it starts over.
    has_something: bool = False


@dataclass(frozen=True)
class Decision:
    """How the job begins, as rank 0 knows it."""

    start: Start
    #: The cuts that stay.
    there: list[Manifest]
    #: Host and run directory of each rank.
    places: list[tuple[str, str]]


def lead(
    place: Place, hub: Hub, own: Hello, manifests: Manifests, wish: Callable[[], Wish], can_begin: CanBegin,
    prepare: Callable[[Start], None] = lambda _: None,
) -> Decision:  # fmt: skip
    """Decide, on rank 0, what all ranks do; `prepare` is called with it before the others are told. `wish` raises `DetrainError`.

    `can_begin` says of a cut, by its name and the digest of this rank's part, why this rank cannot go on from it, "" if it can. Raises
    what ends the job; the other ranks have been told.
    """
    try:
        hellos = _gather(place, hub, own)
        start, there = _decide(hub, hellos, manifests, wish(), can_begin)
        start = replace(
            start, whole=manifests.names(), forgets_loops=not start.name and len({one.loops for one in hellos}) > 1
        )
        prepare(start)
    except DetrainError as error:
        hub.tell_all(Start(refusal=str(error), status=error.exit_status))
        raise
    hub.tell_all(start)
    return Decision(start, there, [(hello.host, hello.directory) for hello in hellos])


def follow(spoke: Spoke, rank: int, can_begin: CanBegin) -> Start:
    """Answer rank 0's questions until it has decided. Raises `DetrainError` if the job does not begin, which rank 0 has said."""
    until_s = time.monotonic() + 2 * LONGEST_WAIT_S  # rank 0 waits for the others first
    while True:
        message = spoke.hear(until_s)
        if isinstance(message, Propose):
            spoke.send(0, Answer(message.name, can_begin(message.name, message.digests[rank])))
        elif isinstance(message, Start):
            return message
        else:
            raise UsageError("rank 0 is gone before the script began")


def _gather(place: Place, hub: Hub, own: Hello) -> list[Hello]:
    def say_missing(ranks: list[int]) -> None:
        say(f"waiting for {_ranks(ranks)} of {place.size}")

    others = hub.gather(time.monotonic() + LONGEST_WAIT_S, say_missing)
    missing = [rank for rank in range(1, place.size) if rank not in others]
    if missing:
        raise UsageError(
            f"{_ranks(missing)} of {place.size} did not come in {LONGEST_WAIT_S:.0f} s, so nothing was started; start all ranks with the "
            "same command"
        )
    hellos = [own, *(others[rank] for rank in sorted(others))]
    for hello in hellos:
        for name, what in _COMMON:
            mine, theirs = getattr(own, name), getattr(hello, name)
            if mine != theirs:
                shown = "" if name == "key" else f": {_shown(theirs)}, rank 0 {_shown(mine)}"
                raise UsageError(
                    f"rank {hello.rank} has {what} than rank 0{shown}. All ranks have to run the same command"
                )
    for hello in hellos:
        if hello.trouble:
            raise ResumeRefused(f"rank {hello.rank} on {hello.host}: {hello.trouble}")
    return hellos


def _decide(
    hub: Hub, hellos: list[Hello], manifests: Manifests, wish: Wish, can_begin: CanBegin
) -> tuple[Start, list[Manifest]]:
    job = manifests.path.parent
    if wish.is_fresh:
        return Start(aside=free_name_beside(job).name if wish.has_something else ""), []
    if wish.size not in (0, len(hellos)):
        raise ResumeRefused(
            f"{job} holds a job of {wish.size} ranks, and these are {len(hellos)}: another number of ranks does not give the same bits. "
            "Start over with --fresh (the old job is kept), or choose another directory with --ckpt-dir"
        )
    if wish.finished:
        raise AlreadyFinished(
            f"the job in {job} came to its end at {wish.finished}: there is nothing left to do. Train again with --fresh, which keeps the "
            "old job"
        )
    passed_over: list[str] = []
    _check_nothing_is_lost(hellos, manifests, wish)
    cuts = manifests.read(lambda error: passed_over.append(str(error)))
    if wish.start:
        cuts = [cut for cut in cuts if cut.name == Path(wish.start).name]
        if not cuts:
            raise ResumeRefused(f"--from {wish.start}: the job in {job} has no such cut")
    for position, cut in enumerate(cuts):
        trouble = _trouble(hub, cut, hellos, can_begin)
        if not trouble:
            for text in passed_over:
                say(f"warning: {text} [checkpoint-passed-over]")
            return Start(cut.name), cuts[position:]
        passed_over.append(trouble)
    if passed_over:
        raise InexactResume(
            f"no cut in {job} can be used: {'; '.join(passed_over)}",
            "Nothing was changed; put back what is missing, or start over with --fresh, which keeps the rest",
        )
    return Start(), []


def _trouble(hub: Hub, cut: Manifest, hellos: list[Hello], can_begin: CanBegin) -> str:
    """Why a cut cannot be resumed from; "" if every rank has its part whole."""
    lacking = [hello for hello in hellos if cut.name not in hello.checkpoints]
    if lacking:
        return "; ".join(
            f"{cut.name} is not in {hello.directory} of rank {hello.rank} on {hello.host}" for hello in lacking
        )
    digests = tuple(part.digest for part in cut.parts)
    hub.tell_all(Propose(cut.name, digests))
    own = can_begin(cut.name, digests[0])
    answers = hub.hear_all(time.monotonic() + LONGEST_WAIT_S)
    troubles = [f"rank 0: {own}"] if own else []
    for rank, answer in sorted(answers.items()):
        if not isinstance(answer, Answer):
            raise UsageError(f"rank {rank} is gone before the script began")
        if answer.trouble:
            troubles.append(f"rank {rank}: {answer.trouble}")
    return "; ".join(troubles)


def _check_nothing_is_lost(hellos: list[Hello], manifests: Manifests, wish: Wish) -> None:
    """Raises `ResumeRefused` if ranks hold checkpoints and rank 0 has lost what says which of them belong together."""
    held = sorted({name for hello in hellos for name in hello.checkpoints})
    if held and (not wish.size or not manifests.path.is_dir()):
        raise ResumeRefused(
            f"ranks hold checkpoints ({', '.join(held[:3])}), and what says which parts belong together, {manifests.path} on "
            f"{hellos[0].host}, the host of rank 0, is not there. Put it back, or start over with --fresh"
        )


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _shown(value: object) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
