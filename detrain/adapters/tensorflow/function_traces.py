"""Checks that a `tf.function` is traced to the same graph as before the kill.

A trace keeps for good what it read from Python: an attribute, which layers are trainable, a number that numpy drew. A resumed attempt
traces anew, after the loop may have changed all that; a digest of the graph's operations tells whether the same graph came out.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from detrain.errors import RestoreError

#: Attributes that do not bear on what is computed, or that number what the process has made before. Seeds of random operations are
#: checked with their counters.
_IGNORED = frozenset({"seed", "seed2", "shared_name", "container", "config", "config_proto", "executor_type", "token"})


class Traces:
    """The graphs of each function, and those that it must be traced to."""

    def __init__(self) -> None:
        #: By function and graph: signature and digest.
        self._graphs: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, tuple[str, str]]] = (
            weakref.WeakKeyDictionary()
        )
        #: At the checkpoint: digests, by function and signature.
        self._expected: weakref.WeakKeyDictionary[Any, dict[str, list[str]]] = weakref.WeakKeyDictionary()
        self._set_aside: Callable[[], str] = str

    def end(self, function: Any, graph: Any, signature: str) -> bool:
        """Record a finished trace; True if the killed attempt had made it. Raises `RestoreError` if it had traced another graph.

        The digest is taken now, because TensorFlow later adds to a loop of the graph what gradients through it need.
        """
        digest = digest_of(graph.as_graph_def())
        made = self._graphs.setdefault(function, weakref.WeakKeyDictionary())
        is_new = (signature, digest) not in made.values()
        made[graph] = signature, digest
        expected = self._expected.get(function, {}).get(signature)
        if expected is None or digest in expected:
            return is_new and expected is not None
        raise RestoreError(
            f"{function.name}: this `tf.function` has been traced to another graph than before the kill, so what it once read from Python "
            "(an attribute, which layers can be trained, a random number) has changed since, and this resume cannot be exact. "
            "Call it once before the training loop, or give it as a tensor or a variable what changes. "
            f"{self._set_aside()}"
        )

    def of(self, function: Any) -> dict[str, list[str]]:
        """Digests of the traces of a function, by signature."""
        found = {signature: set(digests) for signature, digests in self._expected.get(function, {}).items()}
        for signature, digest in self._graphs.get(function, {}).values():
            found.setdefault(signature, set()).add(digest)
        return {signature: sorted(digests) for signature, digests in sorted(found.items())}

    def expect(self, function: Any, digests: dict[str, list[str]], set_aside: Callable[[], str]) -> None:
        """Set the digests that a function had at a checkpoint, by signature. `set_aside`: gives the end of an error message."""
        self._expected[function] = digests
        self._set_aside = set_aside


traces = Traces()


def digest_of(definition: Any) -> str:
    """xxh3-128 of all operations of a `GraphDef`, whatever their order and names."""
    functions = (node for function in definition.library.function for node in function.node_def)
    digest = xxhash.xxh3_128()
    for operation in sorted(_of_operation(node) for nodes in (definition.node, functions) for node in nodes):
        digest.update(operation)
    return digest.hexdigest()


def _of_operation(node: Any) -> bytes:
    digest = xxhash.xxh3_128(node.op.encode())
    for part in _parts_of(node):
        digest.update(part)
    return digest.digest()


def _parts_of(node: Any) -> Iterator[bytes]:
    yield len(node.input).to_bytes(4, "little")
    for name, value in sorted(node.attr.items()):
        # Names of functions have numbers in them; what is in the functions is digested as well.
        names_functions = value.HasField("func") or bool(value.list.func)
        if not name.startswith("_") and name not in _IGNORED and not names_functions:
            yield name.encode()
            yield value.SerializeToString(deterministic=True)
