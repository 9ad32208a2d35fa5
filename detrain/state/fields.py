"""What each field of a node holds: the one table that the walk's readers ask.

A node is a JSON-able dict (`detrain.state.tree`), and JSON alone does not say what a field means: `["@", 5]` may be a ref to node 5 or
a list of a text and a number, the arguments of `itertools.repeat("@", 5)`. So the *name* of a field says how it holds refs, and it says
the same in nodes of every kind. A checkpoint can therefore be listed and compared by a process in which neither the script nor its
framework is loaded. What is not in the table is plain JSON.

A handler declares the fields that it writes (`Handler.fields`), and is refused when it is registered if its declaration contradicts the
table: a new field that holds refs takes one of these names, or a new name that is added here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any


class Holds(enum.Enum):
    """How a field holds refs."""

    #: JSON without any ref: a shape, a dtype's name, the state dict of a bit generator.
    PLAIN = "plain"
    #: One ref. (A dict in its place is plain JSON: no ref is a dict.)
    ONE = "one"
    #: A list of refs, in an order that counts.
    LIST = "list"
    #: A list of [name, ref].
    NAMED = "named"
    #: A list of [ref of the key, ref], in the order of the mapping.
    ITEMS = "items"
    #: A list of lists of refs.
    LISTS = "lists"


def _table(**names: str) -> Mapping[str, Holds]:
    return MappingProxyType({name: Holds(holds) for holds, text in names.items() for name in text.split()})


#: The fields that hold refs.
FIELDS = _table(
    one="""
        class dict_of within
        v value args state self function dict defaults kwdefaults keywords factory fget fset fdel __func__
        of to callback over base wrapped told error result lock setter
        storage grad _backward_hooks _post_accumulate_grad_hooks gauss bits seeds loader dataset sampler
    """,
    list="seq parts iterators stack flying coo",
    named="attrs slots cells data globals locals loader_attrs made loggers",
    items="items",
    lists="bound",
)


def holds(name: str) -> Holds:
    """What the field of this name holds, in nodes of every kind."""
    return FIELDS.get(name, Holds.PLAIN)


def plain_fields(*names: str) -> dict[str, Holds]:
    """Declares fields of plain JSON."""
    return dict.fromkeys(names, Holds.PLAIN)


def refs_in(name: str, value: Any) -> Iterator[Any]:
    """Every ref in the field `name` of a node, atoms as well as nodes; `value` is what the field holds."""
    match FIELDS.get(name):
        case Holds.ONE if type(value) is not dict:
            yield value
        case Holds.LIST:
            yield from value
        case Holds.NAMED:
            for _, ref in value:
                yield ref
        case Holds.ITEMS | Holds.LISTS:
            for refs in value:
                yield from refs


def map_refs(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """What the field `name` holds, with `change(ref)` in place of every ref."""
    match FIELDS.get(name):
        case Holds.ONE if type(value) is not dict:
            return change(value)
        case Holds.LIST:
            return [change(ref) for ref in value]
        case Holds.NAMED:
            return [[key, change(ref)] for key, ref in value]
        case Holds.ITEMS | Holds.LISTS:
            return [[change(ref) for ref in refs] for refs in value]
    return value


def check(kind: str, fields: Mapping[str, Holds]) -> None:
    """Raises TypeError if a handler's declaration and the table do not agree.

    A field that holds refs in one kind of node may be declared plain in another if what stands there cannot be taken for a ref: an atom
    or a dict.
    """
    for name, held in fields.items():
        if held is not Holds.PLAIN and FIELDS.get(name) is not held:
            raise TypeError(
                f"the handler of {kind!r} declares that its field {name!r} holds {held.name}, and the table in detrain/state/fields.py "
                f"says {holds(name).name}: a checkpoint is read without its handlers, so a name means the same in every kind of node"
            )
