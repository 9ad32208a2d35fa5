"""Who works on which samples of a micro-batch at each stage, and what goes between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from detrain.errors import GraphError
from detrain.pipeline.schedules import Schedule


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples of a micro-batch that one worker has at a stage, counted within the micro-batch."""

    worker: int
    first: int
    end: int

    @property
    def num_samples(self) -> int:
        """How many there are."""
        return self.end - self.first


@dataclass(frozen=True)
class Routes:
    """Of a schedule over stages; `workers`: by stage its replicas, as numbers of workers."""

    schedule: Schedule
    workers: tuple[tuple[int, ...], ...]

    @property
    def replicas(self) -> tuple[int, ...]:
        """How many workers each stage has."""
        return tuple(map(len, self.workers))

    def pieces(self, stage: int, micro_batch: int, num_samples: int) -> list[Piece]:
        """A synchronous schedule splits each micro-batch over the replicas as evenly as can be; others deal whole ones in turn."""
        replicas = self.workers[stage]
        if self.schedule.is_asynchronous:
            return [Piece(replicas[micro_batch % len(replicas)], 0, num_samples)]
        if num_samples < len(replicas):
            raise GraphError(
                f"a micro-batch of {num_samples} samples cannot be split over the {len(replicas)} replicas of stage {stage}"
            )
        ends = split_evenly(num_samples, len(replicas))
        return [Piece(worker, first, end) for worker, first, end in zip(replicas, [0, *ends[:-1]], ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Link:
    """Samples that go from a worker to another, counted within the micro-batch."""

    maker: int
    taker: int
    first: int
    end: int


def links(makers: Sequence[Piece], takers: Sequence[Piece], *, is_whole: bool) -> Iterator[Link]:
    """What goes from each to each, by samples. `is_whole`: what goes has no samples; it comes from who has the taker's first one."""
    for maker in makers:
        for taker in takers:
            if is_whole:
                if maker.first <= taker.first < maker.end:
                    yield Link(maker.worker, taker.worker, taker.first, taker.end)
                continue
            first, end = max(maker.first, taker.first), min(maker.end, taker.end)
            if first < end:
                yield Link(maker.worker, taker.worker, first, end)


def split_evenly(count: int, parts: int) -> list[int]:
    """Where each of so many parts ends; the first ones have one more where it does not come out even."""
    least, more = divmod(count, parts)
    return [(number + 1) * least + min(number + 1, more) for number in range(parts)]
