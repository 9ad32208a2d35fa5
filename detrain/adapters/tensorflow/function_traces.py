"""What a `tf.function` was traced to.

A trace keeps for good what it found in Python: an attribute, which layers can be trained, a number that numpy drew. A later attempt
traces anew, from what the loop has made of all that meanwhile; whether the same came out is told by a digest of the operations.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from detrain.errors import RestoreError

#: Attributes that say nothing of what is computed, or that count what the process has made before. Those of random operations' seeds
#: belong to their counters.
_UNTOLD = frozenset({"seed", "seed2", "shared_name", "container", "config", "config_proto", "executor_type", "token"})


class Traces:
    """The graphs of each function, and what they have to be like."""

    def __init__(self) -> None:
        #: By function and graph: what it was traced for, and the digest.
        self._graphs: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )
        #: Of a checkpoint, by what each was traced for.
        self._expected: weakref.WeakKeyDictionary[Any, dict[str, list[str]]] = weakref.WeakKeyDictionary()
        self._set_aside: Callable[[], str] = str

    def end(self, function: Any, graph: Any, signature: str) -> None:
        """A trace has ended. Raises `RestoreError` if it is not what the killed attempt went on with.

        The digest is taken now: where a gradient flows through a loop of the graph, TensorFlow later adds to that loop what it needs.
        """
        digest = digest_of(graph.as_graph_def())
        self._graphs.setdefault(function, weakref.WeakKeyDictionary())[graph] = signature, digest
        expected = self._expected.get(function, {}).get(signature)
        if expected is None or digest in expected:
            return
        raise RestoreError(
            f"{function.name}: this `tf.function` has been traced to another graph than before the kill, so what it once read from Python "
            "(an attribute, which layers can be trained, a random number) has changed since, and this resume cannot be exact. "
            "Call it once before the training loop, or give it as a tensor or a variable what changes. "
            f"{self._set_aside()}"
        )

    def of(self, function: Any) -> dict[str, list[str]]:
        """Digests of its traces, by what each was traced for."""
        found = {signature: set(digests) for signature, digests in self._expected.get(function, {}).items()}
        for signature, digest in self._graphs.get(function, {}).values():
            found.setdefault(signature, set()).add(digest)
        return {signature: sorted(digests) for signature, digests in sorted(found.items())}

    def expect(self, function: Any, digests: dict[str, list[str]], set_aside: Callable[[], str]) -> None:
        """Its twin had these at a checkpoint."""
        self._expected[function] = digests
        self._set_aside = set_aside


traces = Traces()


def digest_of(definition: Any) -> str:
    """Of all operations of a `GraphDef`, in whatever order and by whatever names."""
    functions = (node for function in definition.library.function for node in function.node_def)
    digest = xxhash.xxh3_128()
    for one in sorted(_of_operation(node) for nodes in (definition.node, functions) for node in nodes):
        digest.update(one)
    return digest.hexdigest()


def _of_operation(node: Any) -> bytes:
    digest = xxhash.xxh3_128(node.op.encode())
    for part in _told(node):
        digest.update(part)
    return digest.digest()


def _told(node: Any) -> Iterator[bytes]:
    yield len(node.input).to_bytes(4, "little")
    for name, value in sorted(node.attr.items()):
        names_functions = value.HasField("func") or bool(value.list.func)  # by numbers; what is in them is told as well
        if not name.startswith("_") and name not in _UNTOLD and not names_functions:
            yield name.encode()
            yield value.SerializeToString(deterministic=True)
