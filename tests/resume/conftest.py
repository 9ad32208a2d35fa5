"""The fixtures `reference` and `killed`, and the table that a soak ends with."""

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.once import once

from .harness import Life, Moment, Place, differences, live, uninterrupted
from .programs import PROGRAMS, Program


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Life]:
    """Gives the uninterrupted life of a program, run once per session."""

    def give(program: Program, every: str = "never") -> Life:
        life: Life = once(
            tmp_path_factory,
            [program.sources, program.arguments, program.environment, program.is_whole, every],
            lambda: uninterrupted(tmp_path_factory.mktemp("reference"), program, every),
        )
        return life

    return give


@dataclass
class Killer:
    """Kills a program at given moments and compares what came out with its uninterrupted life."""

    root: Path
    reference: Callable[..., Life]
    note: Callable[[str, list[Life], list[str]], None]
    num_runs: int = 0

    def new_place(self, program: Program) -> Place:
        """A fresh working folder and run directory."""
        self.num_runs += 1
        return Place(self.root / f"{self.num_runs}", program)

    def __call__(self, program: Program, moments: list[Moment], every: str | list[str] = "1batches") -> Life:
        life = live(self.new_place(program), every, moments)
        problems = differences(self.reference(program), life)
        self.note(program.name, [life], problems)
        told = [f"  {attempt.status} {attempt.own_words}" for attempt in life.attempts]
        assert not problems, "\n".join([*problems, "attempts:", *told])
        return life


@pytest.fixture
def new_place(tmp_path: Path) -> Callable[[Program], Place]:
    """Gives a program a fresh working folder and run directory."""
    numbers = iter(range(1000))
    return lambda program: Place(tmp_path / f"place{next(numbers)}", program)


@pytest.fixture
def killed(tmp_path: Path, reference: Callable[..., Life], note: Callable[..., None]) -> Killer:
    """Kills and compares."""
    return Killer(tmp_path, reference, note)


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Program:
    """A program by its name."""
    return as_marked(PROGRAMS[request.param], request)


def as_marked(program: Program, request: pytest.FixtureRequest) -> Program:
    """A soak kills in set-up code as well, and starts its attempts as a user starts them."""
    return dataclasses.replace(program, is_whole=request.node.get_closest_marker("soak") is not None)


@pytest.fixture
def note(note_kills: Callable[..., None]) -> Callable[[str, list[Life], list[str]], None]:
    """Notes a row of the table of kills."""

    def add(name: str, lives: list[Life], problems: list[str]) -> None:
        kills, attempts = sum(life.num_kills for life in lives), sum(len(life.attempts) for life in lives)
        resumes = sum(len(life.resumes) for life in lives)
        note_kills(name, kills, attempts, resumes, problems[0] if problems else "same bits")

    return add


def seed_of(name: str) -> int:
    """The same for a name in every process."""
    return zlib.crc32(name.encode())
