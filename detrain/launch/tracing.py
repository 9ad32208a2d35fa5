"""One round of the tracer: the script with probes, in the environment of an attempt, until enough has been seen."""

from __future__ import annotations

import ast
import json
import multiprocessing
import os
import random
import sys
import types
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from detrain import package
from detrain.adapters import imports, library_loops
from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Adapter, Settings
from detrain.launch import beneath, script
from detrain.launch.request import Request
from detrain.loops import instfile
from detrain.messages import say
from detrain.rewrite.importer import UserFinder
from detrain.session.replay import is_capturable
from detrain.state import user_code
from detrain.tracer.observer import Observer, Report, World
from detrain.tracer.probes import Probes
from detrain.world import preload

_OWN = os.path.realpath(package.FOLDER) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep


def _is_below(filename: str) -> bool:
    """True for what runs the script and is no part of it: detrain, and the standard library (asyncio's loop, say)."""
    if filename.startswith((_OWN, "<frozen")):
        return True
    return filename.startswith(_STANDARD) and f"{os.sep}site-packages{os.sep}" not in filename


class Tracing:
    """A script under observation; leaves a report and ends the process."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.probes = Probes()
        self.digests: dict[str, str] = {}
        self.frameworks = Frameworks()
        self._pid = os.getpid()
        self._script_name = request.name
        self.observer = Observer(
            self.probes,
            World(
                is_user_file=lambda name: name in self.digests,
                is_below=_is_below,
                function_in=library_loops.function_in,
                modules=self._modules,
                name_of=lambda name: self._script_name if name == "__main__" else name,
                has_optimizer=self.frameworks.has_optimizer,
                report_in_place_updates=lambda: self.frameworks.report_in_place_updates(self._on_update),
                start_data_flows=self.frameworks.start_data_flows,
                loader_of=self.frameworks.loader_of,
                is_trained=self.frameworks.is_trained,
                is_capturable=is_capturable,
                on_done=self._leave,
            ),
        )

    def passes_over(self, folder: str) -> bool:  # noqa: ARG002 - the import hook's question
        """True: libraries get no probes."""
        return True

    def is_named(self, filename: str) -> bool:  # noqa: ARG002 - the import hook's question
        """False: as `passes_over`, for modules outside packages."""
        return False

    def may_train(self, filename: str, read: Callable[[], bytes]) -> bool:  # noqa: ARG002 - the import hook's question
        """False: a loop of a library is found by its running frame."""
        return False

    def compile(self, content: bytes, filename: str) -> types.CodeType:
        """The code of a user's file, with probes."""
        tree = compile(content, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        self.digests[filename] = instfile.digest(content)
        return self.probes.compile(tree, filename)

    def run(self) -> None:
        """Run the script; comes to its end only if there was nothing to see, or no more of it."""
        random.seed(self.request.seed)
        settings = Settings(self.request.seed, not self.request.nondeterministic, preload.key_entropy, preload.outlast)
        sys.meta_path.insert(0, UserFinder(self, user_code.user_modules.add))
        imports.watch_imports(
            lambda name: imports.prepare(name, self.frameworks, settings, self), beneath.PROCESS_MODULES
        )
        os.register_at_fork(after_in_child=lambda: sys.setprofile(None))
        if preload.is_loaded():
            preload.set_entropy_state((0, 0))
        try:
            if self.request.module:
                script.run_module(self.request.module, self.request.arguments)
            else:
                script.run_file(self.request.script, self.request.arguments, self.compile)
        except SystemExit as leaving:
            if leaving.code == 2 and self.request.hint:
                say(self.request.hint)
            if leaving.code:
                raise
        self.observer.finish(None)

    def watch(self, adapter: Adapter) -> None:
        """A framework has been loaded."""
        adapter.report_updates(self._on_update, self._on_gradient)

    def _on_update(self) -> None:
        if self._pid == os.getpid():
            self.observer.on_update(sys._getframe(1))

    def _on_gradient(self, _: object) -> None:
        if self._pid == os.getpid():
            self.observer.on_gradient(sys._getframe(1))

    def _modules(self) -> dict[str, types.ModuleType]:
        names = ["__main__", *sorted(user_code.user_modules - {"__main__"})]
        return {
            self._script_name if name == "__main__" else name: sys.modules[name]
            for name in names
            if name in sys.modules
        }

    def _leave(self, report: Report) -> NoReturn:
        """Write the report and end at once: what the script does at its end must not be done by half a training."""
        document = {**asdict(report), "sources": self.digests}
        path = Path(self.request.report)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(path)
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
