"""What the source of a script says: calls and settings that make runs differ, found without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from detrain.doctor import imports
from detrain.doctor.finding import Finding
from detrain.errors import UsageError

#: Dotted name of what is called, to (level, what, advice). A name stands for all that begins with it and a dot.
CALLS = {
    "torch.use_deterministic_algorithms": (
        "note", "sets deterministic mode itself", "nothing: the script's setting holds"),
    "torch.ops.torchvision.roi_pool": ("risk", "has no deterministic kernel on CUDA", "use torchvision.ops.roi_align"),
    "torchvision.ops.roi_pool": ("risk", "has no deterministic kernel on CUDA", "use torchvision.ops.roi_align"),
    "torchvision.ops.ps_roi_pool": ("risk", "has no deterministic kernel on CUDA", "use torchvision.ops.roi_align"),
    "torchvision.ops.ps_roi_align": ("risk", "has no deterministic kernel on CUDA", "use torchvision.ops.roi_align"),
    "torchvision.ops.deform_conv2d": (
        "risk", "has no deterministic kernel on CUDA", "use grid_sample and a convolution"),
    "multiprocessing.Process": (
        "breaks", "starts a process beside the script; while it lives beside the loop, a resume is refused",
        "let a DataLoader's workers do it, or end it before the loop"),
    "threading.Thread": (
        "breaks", "starts a thread beside the script; while it lives beside the loop, a resume is refused",
        "let a DataLoader's workers do it, or end it before the loop"),
    "torch.multiprocessing.Process": (
        "breaks", "starts a process beside the script; while it lives beside the loop, a resume is refused",
        "let a DataLoader's workers do it"),
    "requests": ("risk", "asks the network, which may answer otherwise", "keep a copy of the answer in a file"),
    "urllib.request": ("risk", "asks the network, which may answer otherwise", "keep a copy of the answer in a file"),
    "input": ("risk", "reads what a person types, which a resumed attempt asks for again", "take it from the command line"),
    "socket.gethostname": ("note", "differs on another machine", "keep it out of names and seeds"),
    "platform.node": ("note", "differs on another machine", "keep it out of names and seeds"),
    "uuid.uuid1": ("risk", "mixes in the process id", "use uuid4, which is answered from the seeded stream"),
    "uuid.uuid4": (
        "note", "is the same whenever this command is repeated", "take what must be new each time from the command line"),
    "concurrent.futures.as_completed": ("breaks", "gives results in the order of their timing", "go through the futures in order"),
    "concurrent.futures.ThreadPoolExecutor": (
        "risk", "runs threads in an order that differs from run to run, and with it what they draw and add up",
        "let them return results, and use those in order"),
    "multiprocessing.pool.ThreadPool": (
        "risk", "runs threads in an order that differs from run to run, and with it what they draw and add up",
        "let them return results, and use those in order"),
    "numpy.empty": ("risk", "holds what was in that memory before, until it is written to", "np.zeros, unless every element is written"),
    "numpy.empty_like": (
        "risk", "holds what was in that memory before, until it is written to", "np.zeros_like, unless every element is written"),
    **dict.fromkeys(
        ("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_output", "os.system", "os.popen"),
        ("note", "starts a program, whose clock and random numbers are its own", "keep its output in a file")),
    "os.listdir": ("note", "is sorted under detrain, and by chance under python", "sort it in the script as well"),
    "os.scandir": ("note", "is sorted under detrain, and by chance under python", "sort it in the script as well"),
    "glob.glob": ("note", "is sorted under detrain, and by chance under python", "sort it in the script as well"),
}  # fmt: skip

#: What begins a run in a service, to the argument and the variable that give it an id. Without, the library draws one.
SERVICES = {
    "wandb.init": ("id", "WANDB_RUN_ID"),
    "comet_ml.start": ("experiment_key", "COMET_EXPERIMENT_KEY"),
    "comet_ml.Experiment": ("experiment_key", "COMET_EXPERIMENT_KEY"),
    "mlflow.start_run": ("run_id", "MLFLOW_RUN_ID"),
    "neptune.init_run": ("custom_run_id", "NEPTUNE_CUSTOM_RUN_ID"),
    "swanlab.init": ("id", "SWANLAB_RUN_ID"),
    "aim.Run": ("run_hash", ""),
}
#: The same, of classes that several frameworks offer under one name.
_LOGGERS = {
    "WandbLogger": SERVICES["wandb.init"],
    "CometLogger": SERVICES["comet_ml.start"],
    "MLFlowLogger": SERVICES["mlflow.start_run"],
}
_SEEDING = ("seed", "manual_seed", "manual_seed_all", "default_rng", "Random", "RandomState", "SeedSequence")
_CLOCKS = (
    "time.time", "time.time_ns", "datetime.datetime.now", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
    "time.monotonic_ns", "time.process_time", "time.process_time_ns",
)  # fmt: skip
_UPDATES = ("step", "backward", "apply_gradients", "train_on_batch", "fit")
_SORTS = ("sorted", "set", "frozenset", "len", "sum", "max", "min")


def of_script(path: Path) -> list[Finding]:
    """Findings in a script and in the modules beside it that it imports. Raises `UsageError` for a file that is no Python."""
    found: list[Finding] = []
    for file in sorted(imports.own_files(path, path.parent, _parse)):
        found += _Reading(file, _parse(file)).run()
    return found


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} cannot be parsed: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


class _Reading:
    """One file."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self._path, self._tree = path, tree
        self._names: dict[str, str] = {}  # name in the file to what it stands for
        self._parents: dict[ast.AST, ast.AST] = {}

    def run(self) -> list[Finding]:
        for node in ast.walk(self._tree):
            self._learn(node)
            self._parents.update((child, node) for child in ast.iter_child_nodes(node))
        return list(dict.fromkeys(one for node in ast.walk(self._tree) for one in self._scan(node)))

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                self._names[one.asname or one.name.partition(".")[0]] = (
                    one.name if one.asname else one.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            self._names.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})

    def _dotted(self, node: ast.AST) -> str:
        """What an expression names, as `module.name`; "" if it is no name."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""

    def _scan(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            yield from self._scan_call(node)
        elif isinstance(node, ast.Assign):
            yield from self._scan_setting(node)
        elif isinstance(node, ast.While) or (isinstance(node, ast.If) and self._leaves_a_loop(node)):
            yield from self._scan_condition(node, node.test)

    def _scan_call(self, node: ast.Call) -> Iterator[Finding]:
        name = self._dotted(node.func)
        known = next((CALLS[one] for one in (name, *_beginnings(name)) if one in CALLS), None)
        if known is not None and not (known[1].startswith("is sorted") and self._is_sorted(node)):
            level, what, advice = known
            yield self._finding(level, node, f"{name} {what}", advice)
        if name.rpartition(".")[2] in _SEEDING:
            for clock in self._calls_in(node, _CLOCKS):
                yield self._finding(
                    "risk", node, f"a seed from {clock}: a resumed attempt is told the same again, another run is not",
                    "seed from a number",
                )  # fmt: skip
        yield from self._scan_service(node, name)
        if name == "torch.compile" and any("max-autotune" in ast.unparse(one.value) for one in node.keywords):
            yield self._finding("breaks", node, "kernels are chosen by timing them", "leave out mode='max-autotune'")

    def _scan_service(self, node: ast.Call, name: str) -> Iterator[Finding]:
        argument, variable = SERVICES.get(name) or _LOGGERS.get(name.rpartition(".")[2]) or ("", "")
        if argument and not any(one.arg in (argument, None) for one in node.keywords):
            yield self._finding(
                "risk", node,
                f"{name} draws the run's id, and draws the same whenever this command is repeated: in the service a run then meets the "
                "one before",
                f"pass {argument}=" + (f", or set {variable}," if variable else "") + " when the command is started anew",
            )  # fmt: skip

    def _scan_setting(self, node: ast.Assign) -> Iterator[Finding]:
        for target in node.targets:
            name = self._dotted(target)
            is_true = isinstance(node.value, ast.Constant) and node.value.value is True
            if name == "torch.backends.cudnn.benchmark" and is_true:
                yield self._finding("breaks", node, "cuDNN chooses kernels by timing them", "leave out this line")
            elif name == "torch.backends.cudnn.deterministic" and not is_true:
                yield self._finding(
                    "breaks", node, "cuDNN may use kernels that are not deterministic", "leave out this line"
                )
            elif name.endswith(".allow_tf32") and is_true:
                yield self._finding(
                    "note", node, "TF32 gives other bits on GPUs that lack it", "stay on one kind of GPU"
                )

    def _leaves_a_loop(self, node: ast.If) -> bool:
        is_way_out = any(isinstance(one, (ast.Break, ast.Return)) for one in node.body)
        return is_way_out and any(isinstance(one, (ast.For, ast.While)) for one in self._around(node))

    def _scan_condition(self, node: ast.AST, test: ast.AST) -> Iterator[Finding]:
        loops = [one for one in (node, *self._around(node)) if isinstance(one, (ast.For, ast.While))]
        is_training = any(
            isinstance(one, ast.Attribute) and one.attr in _UPDATES for loop in loops for one in ast.walk(loop)
        )
        for clock in self._calls_in(test, _CLOCKS):
            yield self._finding(
                "breaks" if is_training else "risk", node,
                f"how long a loop runs hangs on {clock}, so the number of its batches differs from run to run",
                "count batches or epochs instead",
            )  # fmt: skip

    def _calls_in(self, node: ast.AST, names: tuple[str, ...]) -> list[str]:
        called = (self._dotted(one.func) for one in ast.walk(node) if isinstance(one, ast.Call))
        return [name for name in called if name in names]

    def _is_sorted(self, node: ast.AST) -> bool:
        """True if the listing's order does not matter: it goes into sorted(), len(), a set."""
        return any(isinstance(one, ast.Call) and self._dotted(one.func) in _SORTS for one in self._around(node))

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while (parent := self._parents.get(node)) is not None and not isinstance(parent, (ast.FunctionDef, ast.Lambda)):
            yield parent
            node = parent

    def _finding(self, level: str, node: ast.AST, what: str, advice: str) -> Finding:
        return Finding(level, f"{self._path}:{getattr(node, 'lineno', 0)}", what, advice)


def _beginnings(name: str) -> Iterator[str]:
    """`a.b.c` to `a.b`, `a`; not of names that a module of the standard library merely shares."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name not in sys.stdlib_module_names or name == "urllib.request":
            yield name
