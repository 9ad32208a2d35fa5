"""What an experiment is, and reading several from one TOML file: `docs/remat.md` has every key in a table."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from detrain.errors import GraphError, MissingExtra, UsageError
from detrain.plans.documents import Fields, parsed
from detrain.remat.amounts import ONLINE, amount_of
from detrain.remat.builders import MODELS
from detrain.remat.experiments import bounds
from detrain.remat.planners import registry
from detrain.remat.simulator import parse_budget

KINDS = ("pareto", "ablation", "banishing", "linear", "accesses", "measured")
#: What stands above the line of a score, and what below, in the ablation of Kirisame et al. (ICLR 2021, appendix D).
COSTS, DIVISORS = ("e*", "eq", "local", "none"), ("-size-stale", "-size", "-stale", "")
DEALLOCATIONS = ("ignore", "eager", "banish")
#: What is taken where the file says nothing: the heuristics of the paper's figure 2.
_POLICIES = tuple(f"{name}:eager" for name in ("dtr", "dtr-eq", "dtr-local", "msps", "lru", "size", "random"))
_BUDGETS = tuple(f"{tenths / 10}" for tenths in range(10, 0, -1))
_LENGTHS = (16, 32, 64, 128, 256, 512)
#: A run over this many times the step without a budget is given up. Of linear networks it is the very question how long it takes.
_LIMITS = {"linear": 100.0}
_LIMIT = 2.0
_KEYS = (
    "name", "kind", "models", "model", "budgets", "planners", "heuristics", "lengths", "time_limit", "repetitions", "warm_up", "timeout",
    "retries", "limit", "compat", "scripts", "batches",
)  # fmt: skip
#: Keys that only some kinds have.
_ONLY_IN = {
    "heuristics": {"banishing"},
    "lengths": {"linear"},
    "models": {"pareto", "ablation", "banishing", "accesses"},
    "model": {"pareto", "ablation", "banishing", "accesses"},
    "planners": {"pareto", "linear", "accesses", "measured"},
    "scripts": {"measured"},
    "batches": {"measured"},
    "limit": {"pareto", "ablation", "banishing", "linear", "accesses"},
    "compat": {"pareto", "ablation", "banishing", "linear", "accesses"},
}
#: Of a measured experiment: what is compared, in shares of the first iteration's peak, and how many batches are timed and go before.
_MEASURED_PLANNERS, _MEASURED_BUDGETS, _BATCHES, _WARM_UP = (ONLINE, "auto"), ("0.8", "0.6", "0.4"), 10, 3


@dataclass(frozen=True)
class ModelChoice:
    """A step to be planned: one of `builders.MODELS` with its parameters, or of a file; or a script, which is measured."""

    label: str
    builder: str = ""
    parameters: tuple[tuple[str, int], ...] = ()
    path: Path | None = None
    #: The script with its arguments, and the folder in which it runs.
    words: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def file(self) -> Path | None:
        """The file that it is of; None for a model that is built, and for a module."""
        is_script = self.folder is not None and self.words[0] != "-m"
        return self.folder / self.words[0] if self.folder is not None and is_script else self.path


@dataclass(frozen=True)
class Experiment:
    """One table of the file. Times in seconds."""

    name: str
    kind: str
    models: tuple[ModelChoice, ...]
    #: As they are written: shares, bytes, or rules for the length.
    budgets: tuple[str, ...]
    planners: tuple[str, ...]
    #: For the planning of one cell.
    time_limit_s: float = 60.0
    #: For all cells of the experiment together; None: as long as it takes.
    timeout_s: float | None = None
    repetitions: int = 1
    warm_up: int = 0
    retries: int = 0
    #: Of an online policy's time over that of the step without a budget.
    limit: float = _LIMIT
    is_compat: bool = False
    #: That are timed of a script.
    num_batches: int = 0


def read(path: Path) -> tuple[Experiment, ...]:
    """All experiments of a file. Raises `GraphError` or `UsageError` naming file, table and key, `MissingExtra`, or `OSError`."""
    top = Fields(parsed(path, "TOML", tomllib.loads), str(path), ("experiment",))
    tables = top.tables("experiment", _KEYS)
    if not tables:
        raise GraphError(f"{path} has no [[experiment]]")
    experiments = tuple(_experiment(table, path.parent) for table in tables)
    seen: set[str] = set()
    for table, experiment in zip(tables, experiments, strict=True):
        if experiment.name in seen:
            table.wrong("name", "as is that of an experiment before it")
        seen.add(experiment.name)
    return experiments


def _experiment(table: Fields, folder: Path) -> Experiment:
    name, kind = table.text("name"), table.text("kind")
    if not re.fullmatch(r"\w[\w.-]*", name):
        table.wrong("name", "and files are called after it: letters, digits, - _ and dots")
    if kind not in KINDS:
        table.wrong("kind", f"not one of {', '.join(KINDS)}")
    for key, kinds in _ONLY_IN.items():
        if table.has(key) and kind not in kinds:
            raise GraphError(f"{table.place}: {key} is no key of an experiment of kind {kind}")
    return Experiment(
        name, kind, _models(table, kind, folder), _budgets(table, kind), _planners(table, kind),
        time_limit_s=table.number("time_limit", is_above_zero=True) if table.has("time_limit") else 60.0,
        timeout_s=table.number("timeout", is_above_zero=True) if table.has("timeout") else None,
        repetitions=table.whole("repetitions", 1) if table.has("repetitions") else 1,
        warm_up=table.whole("warm_up") if table.has("warm_up") else _WARM_UP if kind == "measured" else 0,
        retries=table.whole("retries") if table.has("retries") else 0,
        limit=_limit(table, kind), is_compat=table.has("compat") and table.flag("compat"),
        num_batches=table.whole("batches", 1) if table.has("batches") else _BATCHES if kind == "measured" else 0,
    )  # fmt: skip


def _limit(table: Fields, kind: str) -> float:
    if not table.has("limit"):
        return _LIMITS.get(kind, _LIMIT)
    limit = table.number("limit")
    if limit <= 1:
        table.wrong("limit", "not a number above 1: the time over that of the step without a budget")
    return limit


def _models(table: Fields, kind: str, folder: Path) -> tuple[ModelChoice, ...]:
    if kind == "linear":
        lengths = table.wholes("lengths", 2) if table.has("lengths") else _LENGTHS
        models = [_built("linear", {"length": length}) for length in lengths]
    elif kind == "measured":
        models = [_script(table, text, folder) for text in (table.texts("scripts") if table.has("scripts") else ())]
        if not models:
            raise GraphError(
                f"{table.place}: there is no script to be measured: name some in scripts, such as 'train.py --batch-size 32'"
            )
    else:
        names = table.texts("models") if table.has("models") else ()
        models = [_built(name, {}) if name in MODELS else _of_file(table, "models", name, folder) for name in names]
        for chosen in table.tables("model") if table.has("model") else ():
            models += _expanded(chosen, folder)
    if not models:
        raise GraphError(f"{table.place}: there is no model: name some in models, or in [[experiment.model]]")
    for number, model in enumerate(models):
        if any(_is_same(model, before) for before in models[:number]):
            key = {"linear": "lengths", "measured": "scripts"}.get(kind, "models")
            raise GraphError(f"{table.place}: {key} has {model.label} twice")
    return tuple(models)


def _is_same(one: ModelChoice, other: ModelChoice) -> bool:
    return (one.builder, one.parameters, one.path, one.words) == (
        other.builder,
        other.parameters,
        other.path,
        other.words,
    )


def _script(table: Fields, text: str, folder: Path) -> ModelChoice:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        table.wrong("scripts", f"and {text!r} cannot be divided into words: {error}")
    if not words or words == ("-m",):
        table.wrong("scripts", f"and {text!r} names no script")
    if words[0] != "-m" and not (folder / words[0]).is_file():
        raise GraphError(f"{table.place}: scripts names {words[0]!r}, and there is no such file in {folder.resolve()}")
    return ModelChoice(text, words=words, folder=folder.resolve())


def _expanded(table: Fields, folder: Path) -> Iterator[ModelChoice]:
    """A model for each combination of the values of its lists."""
    if table.has("graph") == table.has("name"):
        raise GraphError(f"{table.place}: a model has either a name or a graph, and not both")
    if table.has("graph"):
        _refuse_others(table, ("graph",))
        names = table.texts("graph") if not table.is_text("graph") else (table.text("graph"),)
        yield from (_of_file(table, "graph", name, folder) for name in names)
        return
    name = table.text("name")
    if name not in MODELS:
        table.wrong("name", f"not one of {', '.join(MODELS)}; a file is given as graph = FILE")
    _refuse_others(table, ("name", *MODELS[name].defaults))
    keys = [key for key in table.names() if key != "name"]
    for values in itertools.product(*(_values(table, key) for key in keys)):
        yield _built(name, dict(zip(keys, values, strict=True)))


def _refuse_others(table: Fields, known: tuple[str, ...]) -> None:
    """Which keys a model may have is known only once it is known which model it is."""
    for key in table.names():
        if key not in known:
            raise GraphError(f"{table.place}: {key!r} is none of {', '.join(known)}")


def _values(table: Fields, key: str) -> tuple[int, ...]:
    if not table.is_list(key):
        return (table.whole(key, 1),)
    values = table.wholes(key, 1)
    if not values:
        table.wrong(key, "and an empty list has no model")
    return values


def _built(name: str, given: dict[str, int]) -> ModelChoice:
    label = f"{name}({', '.join(f'{key}={value}' for key, value in given.items())})" if given else name
    return ModelChoice(label, name, tuple({**MODELS[name].defaults, **given}.items()))


def _of_file(table: Fields, key: str, name: str, folder: Path) -> ModelChoice:
    path = folder / name
    if not path.is_file():
        raise GraphError(
            f"{table.place}: {key} names {name!r}, which is neither a file in {folder.resolve()} nor one of {', '.join(MODELS)}"
            if key == "models"
            else f"{table.place}: graph is {name!r}, and there is no such file in {folder.resolve()}"
        )
    return ModelChoice(name, path=path)


def _budgets(table: Fields, kind: str) -> tuple[str, ...]:
    if not table.has("budgets"):
        return {"linear": bounds.RULES, "measured": _MEASURED_BUDGETS}.get(kind, _BUDGETS)
    values = table.list("budgets")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            table.wrong("budgets", "not a list of numbers and texts")
    budgets = tuple(value.replace(" ", "") if isinstance(value, str) else str(value) for value in values)
    checks: dict[str, Callable[[str], object]] = {"linear": bounds.check_rule, "measured": _check_run_budget}
    check = checks.get(kind, parse_budget)
    _check_each(table, "budgets", budgets, check)
    return budgets


def _planners(table: Fields, kind: str) -> tuple[str, ...]:
    key = "planners"
    if kind == "ablation":
        planners = tuple(f"{cost}{divisor}:eager" for cost in COSTS for divisor in DIVISORS)
    elif kind == "banishing":
        key = "heuristics"
        heuristics = table.texts(key) if table.has(key) else ("dtr",)
        planners = tuple(f"{heuristic}:{freed}" for heuristic in heuristics for freed in DEALLOCATIONS)
    else:
        planners = table.texts(key) if table.has(key) else _MEASURED_PLANNERS if kind == "measured" else _POLICIES
    if kind == "accesses" and (other := [name for name in planners if ":" not in name]):
        raise GraphError(
            f"{table.place}: planners names {other[0]}; accesses are counted of online policies only, such as dtr:eager"
        )
    _check_each(table, key, planners, registry.training_planner if kind == "measured" else registry.check)
    return planners


def _check_run_budget(text: str) -> None:
    amount_of(text, "budgets")


def _check_each(table: Fields, key: str, texts: tuple[str, ...], check: Callable[[str], object]) -> None:
    """Some, each once and each right."""
    if not texts:
        table.wrong(key, "and an empty list has no cell")
    for text in texts:
        if texts.count(text) > 1:
            raise GraphError(f"{table.place}: {key} has {text} twice")
        try:
            check(text)
        except MissingExtra:
            raise
        except (GraphError, UsageError) as error:
            raise type(error)(f"{table.place}: {key}: {error}") from None
