"""The options of one block: which of its storages are kept for the backward pass, and what is computed again in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from detrain.remat.planners.blocks import Block, Chain, needed_for


@dataclass(frozen=True)
class Option:
    """One choice of what to keep. Times in ns; memory in bytes, without the inputs of the block."""

    #: Operators. `forward`: the block's forward pass where later blocks need its output, too; `alone`: where only its own backward
    #: pass needs it; `backward`: its backward pass, with what is computed again in it.
    forward: tuple[int, ...]
    alone: tuple[int, ...]
    backward: tuple[int, ...]
    forward_ns: int
    alone_ns: int
    backward_ns: int
    #: Kept until the backward pass of the block, the inputs of the next block included.
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


@dataclass(frozen=True)
class Measured:
    """A block with its options. `light`: the operators of its forward pass that the later blocks need, and nothing kept."""

    block: Block
    options: tuple[Option, ...]
    light: tuple[int, ...]
    light_ns: int
    light_peak_bytes: int
    #: The inputs of the next block.
    boundary_bytes: int
    #: What the backward passes of later blocks have made: outputs of the step, and gradients that this and earlier blocks need.
    output_bytes: int
    gradient_bytes: int


class Meter:
    """Measures the blocks of a chain."""

    def __init__(self, chain: Chain) -> None:
        self.graph, self.chain = chain.graph, chain
        self._tensors = self.graph.tensors
        constants = {output for operator in chain.constants for output in self.graph.operators[operator].outputs}
        self._constant = {self._tensors[tensor].base for tensor in constants}
        # A parameter that the step changes is there in any case.
        self._outputs = {self._tensors[output].base for output in self.graph.outputs} - self._constant
        self._handed = [frozenset[int](), *(frozenset(block.boundary) for block in chain.blocks)]
        self._asked_forward = self._asked_by_later()

    def _asked_by_later(self) -> list[set[int]]:
        """By block: tensors that the forward passes of later blocks use."""
        asked: set[int] = set()
        by_block = []
        for block in reversed(self.chain.blocks):
            by_block.append(set(asked))
            asked.update(tensor for number in block.forward for tensor in self.graph.operators[number].inputs)
        return by_block[::-1]

    def bytes_of(self, bases: Iterable[int]) -> int:
        """Memory of storages, which are given by their bases."""
        return sum(self._tensors[base].size_bytes for base in bases)

    def handed_to(self, number: int) -> frozenset[int]:
        """Bases of the storages that earlier blocks leave to a block."""
        return self._handed[number]

    def asked_by_backward(self, number: int) -> set[int]:
        """Tensors that the forward pass of a block makes and its backward pass uses."""
        block = self.chain.blocks[number]
        made = {output for operator in block.forward for output in self.graph.operators[operator].outputs}
        return {
            tensor for operator in block.backward for tensor in self.graph.operators[operator].inputs if tensor in made
        }

    def asked_by_others(self, number: int) -> set[int]:
        """Tensors that other blocks use, and outputs of the step."""
        asked = set(self.graph.outputs) | self._asked_forward[number]
        for other, block in enumerate(self.chain.blocks):
            if other != number:
                asked.update(tensor for operator in block.backward for tensor in self.graph.operators[operator].inputs)
        return asked

    def light(self, number: int) -> tuple[int, ...]:
        """Operators of a block's forward pass that the later blocks need."""
        return tuple(needed_for(self.graph, self.chain.blocks[number].forward, set(self._asked_forward[number])))

    def dropping(self, number: int, most: int) -> list[Option]:
        """At most `most` options that keep less and less; what costs least time per byte to compute again is dropped first."""
        kept = self.asked_by_backward(number)
        handed = self.handed_to(number) | set(self.chain.blocks[number].boundary)
        steps = [kept]
        while True:
            rest = [
                tensor
                for tensor in sorted(kept)
                if self._tensors[tensor].base not in handed and self._tensors[tensor].size_bytes
            ]
            if not rest:
                break
            gone = min(rest, key=lambda tensor: self._price(number, tensor, kept))
            kept = {tensor for tensor in kept if self._tensors[tensor].base != gone}
            steps.append(kept)
        chosen = (
            steps if len(steps) <= most else [steps[place * (len(steps) - 1) // (most - 1)] for place in range(most)]
        )
        return [self.option(number, tensors, self.backward_making(number, tensors)) for tensors in chosen]

    def _price(self, number: int, tensor: int, kept: Set[int]) -> float:
        """Time of computing a tensor again while `kept` stay, in ns per byte."""
        there = self._there_for(number) | (kept - {tensor})
        again = needed_for(self.graph, self.chain.blocks[number].forward, {tensor}, there)
        return self.time_ns(again) / self._tensors[tensor].size_bytes

    def _there_for(self, number: int) -> set[int]:
        """Tensors in memory when a block begins: those of earlier blocks that it uses."""
        handed = self.handed_to(number)
        return {number for number, tensor in enumerate(self._tensors) if tensor.base in handed}

    def backward_making(self, number: int, kept: Set[int]) -> tuple[int, ...]:
        """Operators of a block's backward pass, each behind those that compute its missing inputs again; `kept` need not be."""
        block, steps = self.chain.blocks[number], list[int]()
        there = self._there_for(number) | kept
        made = {output for operator in block.forward for output in self.graph.operators[operator].outputs}
        for operator in block.backward:
            again = needed_for(
                self.graph, block.forward, made.intersection(self.graph.operators[operator].inputs), there
            )
            steps += [*again, operator]
            there.update(output for operator in again for output in self.graph.operators[operator].outputs)
        return tuple(steps)

    def option(self, number: int, kept: Set[int], backward: Sequence[int] | None = None) -> Option:
        """The option of keeping these tensors; the backward pass, `backward` if it is given, computes the others again."""
        block = self.chain.blocks[number]
        handed, gradients = self.handed_to(number), self._gradients_into(number)
        forward = tuple(needed_for(self.graph, block.forward, {*self._asked_forward[number], *kept}))
        alone = tuple(needed_for(self.graph, block.forward, set(kept)))
        backward = tuple(block.backward if backward is None else backward)
        saved = {self._tensors[tensor].base for tensor in kept}.union(self._handed[number + 1]) - handed
        return Option(
            forward, alone, backward, self.time_ns(forward), self.time_ns(alone), self.time_ns(backward), self.bytes_of(saved),
            self.peak_bytes(forward, handed, saved | handed),
            self.peak_bytes(backward, handed | saved | gradients, handed | self._gradients_into(number - 1)),
        )  # fmt: skip

    def measured(self, number: int, options: Sequence[Option]) -> Measured:
        """A block with these options, measured."""
        light, handed = self.light(number), self.handed_to(number)
        later = [operator for block in self.chain.blocks[number + 1 :] for operator in block.backward]
        outputs = {
            self._tensors[output].base for operator in later for output in self.graph.operators[operator].outputs
        } & self._outputs
        gradients = self._gradients_into(number) - outputs
        return Measured(
            self.chain.blocks[number], tuple(options), light, self.time_ns(light),
            self.peak_bytes(light, handed, handed | self._handed[number + 1]),
            boundary_bytes=self.bytes_of(self._handed[number + 1]), output_bytes=self.bytes_of(outputs),
            gradient_bytes=self.bytes_of(gradients),
        )  # fmt: skip

    def time_ns(self, operators: Iterable[int]) -> int:
        """Total time of operators, each as often as it stands there."""
        return sum(self.graph.operators[operator].cost_ns for operator in operators)

    def peak_bytes(self, operators: Sequence[int], there: Set[int], kept: Set[int]) -> int:
        """Peak memory of doing `operators` in order, without what is in memory before and after.

        `there` are the bases of the storages in memory before the first operator, `kept` of those still in memory behind the last;
        outputs of the step stay as well.
        """
        asked = self._asked_behind(operators, kept)
        now = set(there) - self._constant
        used = peak = self.bytes_of(now)
        for place, number in enumerate(operators):
            operator = self.graph.operators[number]
            made = {self._tensors[output].base for output in operator.outputs} - now - self._constant
            used += self.bytes_of(made)
            peak = max(peak, used)
            now |= made
            over = (now & {self._tensors[tensor].base for tensor in (*operator.inputs, *operator.outputs)}) - asked[
                place
            ]
            used -= self.bytes_of(over)
            now -= over
        return peak - self.bytes_of(there & kept)

    def _asked_behind(self, operators: Sequence[int], kept: Set[int]) -> list[set[int]]:
        """By index: of the storages that its operator reads or writes, those that are read again before they are computed again."""
        asked, by_place = set(kept) | self._outputs, []
        for number in reversed(operators):
            operator = self.graph.operators[number]
            inputs = {self._tensors[tensor].base for tensor in operator.inputs}
            made = {self._tensors[output].base for output in operator.outputs if self._tensors[output].base == output}
            by_place.append(asked & (inputs | made))
            asked -= made - self._outputs
            asked |= inputs
        return by_place[::-1]

    def _gradients_into(self, number: int) -> set[int]:
        """Storages that the backward passes of later blocks make, and that of this or an earlier block uses."""
        if number < 0:
            return set()
        blocks = self.chain.blocks
        made = {
            self._tensors[output].base
            for block in blocks[number + 1 :]
            for operator in block.backward
            for output in self.graph.operators[operator].outputs
        }
        asked = {
            self._tensors[tensor].base
            for block in blocks[: number + 1]
            for operator in block.backward
            for tensor in self.graph.operators[operator].inputs
        }
        return (made & asked) - self._constant
