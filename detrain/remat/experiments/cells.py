"""The cells of experiments: what is to be done, each with a key of all that decides its result."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detrain.remat.experiments.config import Experiment, ModelChoice


@dataclass(frozen=True)
class Cell:
    """One thing to be planned."""

    experiment: Experiment
    model: ModelChoice
    planner: str
    budget: str
    key: str


def cells_of(experiments: Sequence[Experiment]) -> list[Cell]:
    """All cells, those of a model together. Raises `OSError` where a model's file cannot be read."""
    cells = []
    digests: dict[Path, str] = {}
    for experiment in experiments:
        for model in experiment.models:
            path = model.file
            if path is not None and path not in digests:
                digests[path] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
            content = digests[path] if path is not None else ""
            cells += [
                Cell(experiment, model, planner, budget, _key(experiment, model, content, planner, budget))
                for planner in experiment.planners
                for budget in experiment.budgets
            ]
    return cells


def _key(experiment: Experiment, model: ModelChoice, *words: str) -> str:
    """Of what decides the figures. How often it is tried, and for how long an experiment may go on, does not."""
    settings = (
        experiment.name, experiment.kind, experiment.time_limit_s, experiment.repetitions, experiment.warm_up, experiment.limit,
        experiment.is_compat, model.label, model.parameters, experiment.num_batches,
    )  # fmt: skip
    return hashlib.blake2b(repr((settings, words)).encode(), digest_size=8).hexdigest()


def one_line(error: Exception) -> str:
    """What an error says, as a table has it."""
    return " ".join(str(error).split())
