"""The documents of one checkpoint after the other, of which each encodes only what is not as in the one before.

Most nodes of a state are the very ones of the checkpoint before (`Tree.common`), and most arrays have their path, dtype and shape: of
them only the digest is another. So the text of each piece of nodes is kept, and what stands around the digests in the table of arrays.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from detrain.state.tree import Array, Look, Node, Tree, digest_prefix
from detrain.store.checkpoint import Stored
from detrain.store.hdf5_layout import LARGE_BYTES, PAGE, Composer, Frame, Slot
from detrain.store.threads import with_breaks

#: A document's place in the file is so much longer at most than the document, that its frame may serve the next one.
_SPARE = 8
#: Digits of a digest, and of the largest offset. Characters.
_DIGEST, _OFFSET = 32, len(str(2**63))
#: Nodes that are encoded, and entries that are joined, at a time; and pieces of nodes between two breaks.
_PIECE_NODES, _PIECE_ENTRIES, _PIECES = 16, 512, 32


class Looks:
    """What the table of arrays says of each but digest and place, by column; and what follows from it."""

    def __init__(self, paths: list[str], labels: list[str], looks: list[Look]) -> None:
        self._columns = paths, labels, looks
        self.paths, self.labels = paths, labels
        self.dtypes = [dtype.str for dtype, _ in looks]
        self.shapes = [shape for _, shape in looks]
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in looks]
        #: Numbers of those that are written one by one, and of the others.
        self.large = [number for number, size in enumerate(sizes) if size >= LARGE_BYTES]
        self.small = [number for number, size in enumerate(sizes) if size < LARGE_BYTES]
        #: What each digest is made of before the bytes.
        self.prefixes = [
            digest_prefix(label or dtype.str, shape) for label, (dtype, shape) in zip(labels, looks, strict=True)
        ]

    def are_of(self, columns: tuple[list[str], list[str], list[Look]]) -> bool:
        """True if arrays have these looks; quick where they are the very same values."""
        return self._columns == columns


@dataclass
class _Table:
    """The text of a table: before the digest of each array, and behind it until its offset."""

    looks: Looks
    before: list[str]
    behind: list[str]
    #: Offsets of the arrays, and what ends each entry with them.
    offsets: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    #: What stands before the first digest, and behind each, with ends.
    around: list[str] = field(default_factory=list)
    with_ends: list[str] | None = None


class Encoder:
    """Keeps what the next checkpoint may have in common with the last."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._texts: list[bytes] = []
        #: Of pieces in which some nodes change: each node with its text, by number.
        self._single: dict[int, tuple[Node, bytes]] = {}
        self._table: _Table | None = None
        self._composer = Composer()

    def nodes(self, tree: Tree) -> list[bytes]:
        """Pieces of the tree without its table of arrays, and without the brace at its end.

        Piece by piece: the encoder holds the interpreter's lock for as long as a piece takes.
        """
        nodes, before = tree.nodes, self._nodes
        # A copy: where a node cannot be encoded, what is kept stays what was written last.
        num_pieces, texts = -(-len(nodes) // _PIECE_NODES), list(self._texts)
        others = {number // _PIECE_NODES for number in _other_places(nodes, before)}
        if len(nodes) != len(before):
            first = min(len(nodes), len(before)) // _PIECE_NODES
            others.update(range(first, num_pieces))
            texts[first:] = [b""] * (num_pieces - first)
            self._single.clear()
        for piece in with_breaks(sorted(others), _PIECES):
            texts[piece] = self._encode(nodes, before, piece * _PIECE_NODES)
        self._nodes, self._texts = nodes, texts
        return [b'{"nodes":[', b",".join(texts), b'],"roots":', encode(tree.roots)]

    def _encode(self, nodes: Sequence[Node], before: Sequence[Node], start: int) -> bytes:
        """A piece. Where some of it is as before, the same nodes will be the next time, and some are long: the text of each is kept."""
        piece = nodes[start : start + _PIECE_NODES]
        if not any(map(operator.is_, piece, before[start : start + _PIECE_NODES])):
            return encode(piece)[1:-1]
        texts = []
        for number, node in enumerate(piece, start):
            known = self._single.get(number)
            if known is None or known[0] is not node:
                known = self._single[number] = node, encode(node)
            texts.append(known[1])
        return b",".join(texts)

    def looks(self, arrays: Sequence[Array]) -> Looks:
        """Of these arrays; those of the table before if they are the same."""
        columns = [array.path for array in arrays], [array.label for array in arrays], [array.look for array in arrays]
        if self._table is None or not self._table.looks.are_of(columns):
            looks = Looks(*columns)
            self._table = _Table(looks, *_texts_around(looks))
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
            lambda: _slots(table.looks, own), (table.looks, tuple(own)), capacities, attributes
        )

    def table(self, digests: Sequence[str], held: Mapping[int, Stored], offsets: list[int]) -> list[bytes]:
        """Pieces of the list of the arrays that were looked at last; `offsets`: of those that the file holds itself."""
        assert self._table is not None
        table = self._table
        if offsets != table.offsets:
            table.offsets, table.ends = offsets, [f'"",{offset}]' for offset in offsets]
        ends = table.ends
        if held:
            ends = list(ends)
            for number, entry in held.items():
                ends[number] = f"{json.dumps(entry.holder)},{entry.offset}]"
        if ends != table.with_ends:
            entries = zip(table.behind, ends, table.before[1:])  # noqa: B905 - of the last there is none behind
            around = [f"{behind}{end},{before}" for behind, end, before in entries]
            table.around = [*table.before[:1], *around, *(table.behind[-1] + ends[-1] for _ in ends[:1])]
            table.with_ends = ends
        parts = zip(digests, table.around[1:], strict=True)
        pieces = [
            "".join(itertools.chain.from_iterable(itertools.islice(parts, _PIECE_ENTRIES))).encode()
            for _ in with_breaks(range(0, len(ends), _PIECE_ENTRIES), 1)
        ]
        return [b"[", *(before.encode() for before in table.around[:1]), *pieces, b"]"]


def _other_places(nodes: list[Node], before: list[Node]) -> Iterator[int]:
    """Numbers of the nodes that were others. Never by `==`: of equal values one may be True and one 1."""
    is_same = list(map(operator.is_, nodes, before))
    number = -1
    for _ in range(is_same.count(False)):
        number = is_same.index(False, number + 1)
        yield number


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
