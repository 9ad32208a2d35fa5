"""Notices when the script loads a framework, and prepares it before the script's next statement."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import MappingProxyType
from typing import Protocol

from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Adapter, Settings
from detrain.adapters.writers import WRITERS, announce

#: Framework to the module whose `ADAPTER` is its adapter.
ADAPTERS = {
    "numpy": "detrain.adapters.numpy",
    "torch": "detrain.adapters.torch",
    "tensorflow": "detrain.adapters.tensorflow",
    "keras": "detrain.adapters.keras",
}


class FrameworkFinder:
    """Finds modules that adapters know, as Python does, and reports when one has been loaded."""

    def __init__(self, on_loaded: dict[str, Callable[[types.ModuleType], None]]) -> None:
        self._on_loaded = on_loaded

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec with a loader that reports, or None."""
        if fullname not in self._on_loaded:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Reporting(spec.loader, self._on_loaded[fullname])
        return spec


class _Reporting(importlib.abc.Loader):
    """A loader that puts the plain one back in its place once it has loaded."""

    def __init__(self, plain: importlib.abc.Loader, on_loaded: Callable[[types.ModuleType], None]) -> None:
        self._plain, self._on_loaded = plain, on_loaded

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._plain.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._plain
        self._plain.exec_module(module)
        self._on_loaded(module)


class Watcher(Protocol):
    """Wants to see weight updates: a session, or a round of the tracer."""

    def watch(self, adapter: Adapter) -> None:
        """A framework has been loaded and prepared."""


def prepare(name: str, frameworks: Frameworks, settings: Settings, watcher: Watcher) -> None:
    """Load the adapter of a framework that has been loaded, make the framework deterministic, and let `watcher` watch it."""
    if name in frameworks.loaded:
        return
    with frameworks.hidden_from_script():
        adapter: Adapter = importlib.import_module(ADAPTERS[name]).ADAPTER
        frameworks.loaded[name] = adapter
        adapter.prepare(settings)
    watcher.watch(adapter)


def watch_imports(
    on_loaded: Callable[[str], None], others: Mapping[str, Callable[[types.ModuleType], None]] = MappingProxyType({})
) -> None:
    """Report every framework as it is loaded, and at once those that detrain has loaded itself; patch libraries that write files.

    `on_loaded` is called with the framework's name. `others`: further modules, each with the function that is called with it once it
    is loaded.
    """
    known: dict[str, Callable[[types.ModuleType], None]] = dict.fromkeys(WRITERS, announce)
    known.update(others)
    known.update(dict.fromkeys(ADAPTERS, lambda module: on_loaded(module.__name__)))
    sys.meta_path.insert(0, FrameworkFinder(known))
    for name, on_module in known.items():
        if name in sys.modules:
            on_module(sys.modules[name])
