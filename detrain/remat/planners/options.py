"""What can be done with one block: which of its storages wait for the way back, and what is made again there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from detrain.remat.planners.blocks import Block, Chain, needed_for


@dataclass(frozen=True)
class Option:
    """Times in ns, memory in bytes, beside what the block is handed."""

    #: What is done when the block is done again for its way back and for later blocks; for its way back alone; and then, with what is
    #: made again there.
    forward: tuple[int, ...]
    alone: tuple[int, ...]
    backward: tuple[int, ...]
    forward_ns: int
    alone_ns: int
    backward_ns: int
    #: What waits, with what is handed on to the next block.
    saved_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int


@dataclass(frozen=True)
class Measured:
    """A block with its options; `light`: doing it only for what it hands on."""

    block: Block
    options: tuple[Option, ...]
    light: tuple[int, ...]
    light_ns: int
    light_peak_bytes: int
    #: Of what it hands on.
    boundary_bytes: int
    #: Outputs of the step that later blocks' ways back have made, and gradients that they have made for it and earlier ones.
    output_bytes: int
    gradient_bytes: int


class Meter:
    """Measures the blocks of a chain."""

    def __init__(self, chain: Chain) -> None:
        self.graph, self.chain = chain.graph, chain
        self._tensors = self.graph.tensors
        self._outputs = {self._tensors[one].base for one in self.graph.outputs}
        constants = {output for one in chain.constants for output in self.graph.operators[one].outputs}
        self._constant = {self._tensors[one].base for one in constants}
        self._handed = [frozenset[int](), *(frozenset(block.boundary) for block in chain.blocks)]
        self._asked_forward = self._asked_by_later()

    def _asked_by_later(self) -> list[set[int]]:
        """By block: tensors that later blocks ask for going forward."""
        asked: set[int] = set()
        found = []
        for block in reversed(self.chain.blocks):
            found.append(set(asked))
            asked.update(one for number in block.forward for one in self.graph.operators[number].inputs)
        return found[::-1]

    def bytes_of(self, bases: Iterable[int]) -> int:
        """Of storages."""
        return sum(self._tensors[one].size_bytes for one in bases)

    def handed_to(self, number: int) -> frozenset[int]:
        """Storages that a block finds."""
        return self._handed[number]

    def asked_by_backward(self, number: int) -> set[int]:
        """Tensors of the way forward that the block's way back asks for and that it makes itself."""
        block = self.chain.blocks[number]
        made = {output for one in block.forward for output in self.graph.operators[one].outputs}
        return {one for operator in block.backward for one in self.graph.operators[operator].inputs if one in made}

    def asked_by_others(self, number: int) -> set[int]:
        """Tensors that other blocks ask for, and outputs of the step."""
        asked = set(self.graph.outputs) | self._asked_forward[number]
        for other, block in enumerate(self.chain.blocks):
            if other != number:
                asked.update(one for operator in block.backward for one in self.graph.operators[operator].inputs)
        return asked

    def light(self, number: int) -> tuple[int, ...]:
        """What of a block has to be done for what it hands on."""
        return tuple(needed_for(self.graph, self.chain.blocks[number].forward, set(self._asked_forward[number])))

    def dropping(self, number: int, most: int) -> list[Option]:
        """Options that keep less and less: what is made again soonest for its memory goes first."""
        kept = self.asked_by_backward(number)
        handed = self.handed_to(number) | set(self.chain.blocks[number].boundary)
        steps = [kept]
        while True:
            rest = [
                one for one in sorted(kept) if self._tensors[one].base not in handed and self._tensors[one].size_bytes
            ]
            if not rest:
                break
            gone = min(rest, key=lambda one: self._price(number, one, kept))
            kept = {one for one in kept if self._tensors[one].base != gone}
            steps.append(kept)
        chosen = (
            steps if len(steps) <= most else [steps[place * (len(steps) - 1) // (most - 1)] for place in range(most)]
        )
        return [self.option(number, one, self.backward_making(number, one)) for one in chosen]

    def _price(self, number: int, tensor: int, kept: Set[int]) -> float:
        """Of making a tensor again when others are kept: ns for a byte."""
        there = self._found(number) | (kept - {tensor})
        again = needed_for(self.graph, self.chain.blocks[number].forward, {tensor}, there)
        return self.time_ns(again) / self._tensors[tensor].size_bytes

    def _found(self, number: int) -> set[int]:
        """Tensors that a block finds."""
        handed = self.handed_to(number)
        return {one for one, tensor in enumerate(self._tensors) if tensor.base in handed}

    def backward_making(self, number: int, kept: Set[int]) -> tuple[int, ...]:
        """The way back of a block, and before each operator what has to be made again for it."""
        block, found = self.chain.blocks[number], list[int]()
        there = self._found(number) | kept
        made = {output for one in block.forward for output in self.graph.operators[one].outputs}
        for operator in block.backward:
            again = needed_for(
                self.graph, block.forward, made.intersection(self.graph.operators[operator].inputs), there
            )
            found += [*again, operator]
            there.update(output for one in again for output in self.graph.operators[one].outputs)
        return tuple(found)

    def option(self, number: int, kept: Set[int], backward: Sequence[int] | None = None) -> Option:
        """To keep these tensors of those that the way back asks for, which makes the others again."""
        block = self.chain.blocks[number]
        handed, gradients = self.handed_to(number), self._gradients_into(number)
        forward = tuple(needed_for(self.graph, block.forward, {*self._asked_forward[number], *kept}))
        alone = tuple(needed_for(self.graph, block.forward, set(kept)))
        backward = tuple(block.backward if backward is None else backward)
        saved = {self._tensors[one].base for one in kept}.union(self._handed[number + 1]) - handed
        return Option(
            forward, alone, backward, self.time_ns(forward), self.time_ns(alone), self.time_ns(backward), self.bytes_of(saved),
            self.peak_bytes(forward, handed, saved | handed),
            self.peak_bytes(backward, handed | saved | gradients, handed | self._gradients_into(number - 1)),
        )  # fmt: skip

    def measured(self, number: int, options: Sequence[Option]) -> Measured:
        """A block."""
        light, handed = self.light(number), self.handed_to(number)
        later = [one for block in self.chain.blocks[number + 1 :] for one in block.backward]
        outputs = {
            self._tensors[output].base for one in later for output in self.graph.operators[one].outputs
        } & self._outputs
        gradients = self._gradients_into(number) - outputs
        return Measured(
            self.chain.blocks[number], tuple(options), light, self.time_ns(light),
            self.peak_bytes(light, handed, handed | self._handed[number + 1]),
            boundary_bytes=self.bytes_of(self._handed[number + 1]), output_bytes=self.bytes_of(outputs),
            gradient_bytes=self.bytes_of(gradients),
        )  # fmt: skip

    def time_ns(self, operators: Iterable[int]) -> int:
        """Of operators, each as often as it stands there."""
        return sum(self.graph.operators[one].cost_ns for one in operators)

    def peak_bytes(self, operators: Sequence[int], there: Set[int], kept: Set[int]) -> int:
        """At most beside what the block is handed; `there` before the first operator, `kept` behind the last.

        Outputs of the step stay as well.
        """
        asked = self._asked_behind(operators, kept)
        now = set(there) - self._constant
        used = peak = self.bytes_of(now)
        for place, number in enumerate(operators):
            operator = self.graph.operators[number]
            made = {self._tensors[one].base for one in operator.outputs} - now - self._constant
            used += self.bytes_of(made)
            peak = max(peak, used)
            now |= made
            over = (now & {self._tensors[one].base for one in (*operator.inputs, *operator.outputs)}) - asked[place]
            used -= self.bytes_of(over)
            now -= over
        return peak - self.bytes_of(there & kept)

    def _asked_behind(self, operators: Sequence[int], kept: Set[int]) -> list[set[int]]:
        """By place: of the storages that its operator touches, those that are asked for before they are made again."""
        asked, found = set(kept) | self._outputs, []
        for number in reversed(operators):
            operator = self.graph.operators[number]
            inputs = {self._tensors[one].base for one in operator.inputs}
            made = {self._tensors[one].base for one in operator.outputs if self._tensors[one].base == one}
            found.append(asked & (inputs | made))
            asked -= made - self._outputs
            asked |= inputs
        return found[::-1]

    def _gradients_into(self, number: int) -> set[int]:
        """Storages that ways back of later blocks make and that of this one or an earlier one asks for."""
        if number < 0:
            return set()
        blocks = self.chain.blocks
        made = {
            self._tensors[output].base
            for block in blocks[number + 1 :]
            for one in block.backward
            for output in self.graph.operators[one].outputs
        }
        asked = {
            self._tensors[one].base
            for block in blocks[: number + 1]
            for operator in block.backward
            for one in self.graph.operators[operator].inputs
        }
        return (made & asked) - self._constant
