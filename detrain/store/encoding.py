"""The documents of one checkpoint after the other, of which each encodes only what is not as in the one before.

Most nodes of a state are the very ones of the checkpoint before (`Tree.common`), and most arrays have their path, dtype and shape: of
them only the digest is another. So the text of each piece of nodes is kept, and what stands around the digests in the table of arrays.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detrain.state.tree import Array, Node, Tree
from detrain.store.checkpoint import Stored
from detrain.store.hdf5_layout import PAGE, Composer, Frame, Slot
from detrain.store.threads import with_breaks

#: A document's place in the file is so much longer at most than the document, that its frame may serve the next one.
_SPARE = 8
#: Digits of a digest, and of the largest offset. Characters.
_DIGEST, _OFFSET = 32, len(str(2**63))
#: Nodes that are encoded, and entries that are joined, at a time; and pieces between two breaks.
_PIECE_NODES, _PIECE_ENTRIES, _PIECES = 64, 512, 8


@dataclass(frozen=True)
class Looks:
    """What the table of arrays says of each but digest and place, by column."""

    paths: list[str]
    labels: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> Looks:
        """Of these."""
        looks = [array.look for array in arrays]
        return cls(
            [array.path for array in arrays], [array.label for array in arrays],
            [dtype.str for dtype, _ in looks], [shape for _, shape in looks],
        )  # fmt: skip


@dataclass
class _Table:
    """The texts of a table: before the digest of each array, and behind it until its offset."""

    number: int
    looks: Looks
    before: list[str]
    behind: list[str]
    #: Offsets of the arrays, and what ends each entry with them.
    offsets: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


class Encoder:
    """Keeps what the next checkpoint may have in common with the last."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._texts: list[bytes] = []
        self._table: _Table | None = None
        self._composer = Composer()

    def nodes(self, tree: Tree) -> bytes:
        """The tree without its table of arrays, and without the brace at its end.

        Piece by piece: the encoder holds the interpreter's lock for as long as a piece takes.
        """
        texts = []
        for number, start in enumerate(with_breaks(range(0, len(tree.nodes), _PIECE_NODES), _PIECES)):
            piece, before = (nodes[start : start + _PIECE_NODES] for nodes in (tree.nodes, self._nodes))
            is_known = len(piece) == len(before) and all(map(operator.is_, piece, before))
            texts.append(self._texts[number] if is_known else encode(piece)[1:-1])
        self._nodes, self._texts = tree.nodes, texts
        return b'{"nodes":[' + b",".join(texts) + b'],"roots":' + encode(tree.roots)

    def looks(self, arrays: Sequence[Array]) -> Looks:
        """Of these arrays; those of the table before if they are the same."""
        looks = Looks.of(arrays)
        if self._table is None or looks != self._table.looks:
            number = self._table.number + 1 if self._table is not None else 0
            self._table = _Table(number, looks, *_texts_around(looks))
        return self._table.looks

    def frame(
        self,
        own: Sequence[int],
        held: Mapping[int, Stored],
        num_bytes: tuple[int, int],
        attributes: dict[str, int | str],
    ) -> Frame:
        """The file of the arrays that were looked at last, of which it holds its own; `num_bytes`: of the other documents."""
        assert self._table is not None
        table = self._table
        texts = itertools.chain(table.before, table.behind)
        longest = (
            sum(map(len, texts))
            + len(table.before) * (_DIGEST + _OFFSET + len('"",],'))
            + sum(len(json.dumps(one.holder)) for one in held.values())
        )
        capacities = {"tree": capacity(num_bytes[0] + longest + len(',"stored":[]}')), "meta": capacity(num_bytes[1])}
        return self._composer.compose(
            lambda: _slots(table.looks, own), (table.number, tuple(own)), capacities, attributes
        )

    def table(self, digests: Sequence[str], held: Mapping[int, Stored], offsets: list[int]) -> bytes:
        """The list of the arrays that were looked at last; `offsets`: of those that the file holds itself."""
        assert self._table is not None
        table = self._table
        if offsets != table.offsets:
            table.offsets, table.ends = offsets, [f'"",{offset}]' for offset in offsets]
        ends = table.ends
        if held:
            ends = list(ends)
            for number, entry in held.items():
                ends[number] = f"{json.dumps(entry.holder)},{entry.offset}]"
        parts = zip(table.before, digests, table.behind, ends, strict=True)
        pieces = [
            ",".join(map("".join, itertools.islice(parts, _PIECE_ENTRIES)))
            for _ in with_breaks(range(0, len(ends), _PIECE_ENTRIES), 1)
        ]
        return ("[" + ",".join(pieces) + "]").encode()


def encode(document: object) -> bytes:
    """As JSON."""
    return json.dumps(document, separators=(",", ":")).encode()


def capacity(size: int) -> int:
    """Of a document's place, in few sizes: else the frame of one checkpoint would seldom fit the next. Bytes."""
    step = max(PAGE, 1 << (size // _SPARE).bit_length())
    return -(-size // step) * step


def _texts_around(looks: Looks) -> tuple[list[str], list[str]]:
    columns = zip(looks.labels, looks.dtypes, looks.shapes, strict=True)
    behind = {one: f'",{encode(list(one)).decode()[1:-1]},' for one in set(columns)}
    before = [f'[{json.dumps(path)},"' for path in with_breaks(looks.paths)]
    return before, [behind[one] for one in zip(looks.labels, looks.dtypes, looks.shapes, strict=True)]


def _slots(looks: Looks, own: Sequence[int]) -> list[Slot]:
    return [
        Slot(number, looks.paths[number], looks.labels[number], looks.dtypes[number], looks.shapes[number])
        for number in with_breaks(own)
    ]
