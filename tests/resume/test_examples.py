"""The examples, killed and run again: their own saved files have the bits of an uninterrupted run."""

import dataclasses
import json
import random
import runpy
import shutil
from pathlib import Path

import pytest

from .conftest import seed_of
from .harness import Life, Moment, differences, live
from .programs import Program
from .test_kills import SOAK_KILLS

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, *arguments: str, files: dict[str, str] | None = None) -> Program:
    return Program(
        name, (EXAMPLES / name / "train.py").read_text(encoding="utf-8"), files or {}, arguments, is_whole=True
    )


def music() -> Program:
    folder = EXAMPLES / "tf_music_transformer"
    encode = runpy.run_path(str(folder / "encode.py"))
    tunes = {f"data/{name}": json.dumps(piece) for name, piece in encode["pieces"](8)}
    sources = {name: (folder / name).read_text(encoding="utf-8") for name in ("data.py", "model.py")}
    return example(folder.name, "--epochs", "2", "--length", "40", files={**sources, **tunes})


#: With less to do than by default; what an example prints and saves first tells where a kill can be aimed.
SHORT = [
    pytest.param(example("torch_digits", "--epochs", "4"), "epoch 2 batch", "log.csv", id="torch_digits"),
    pytest.param(
        example("torch_char_lm", "--max_iters=60", "--eval_interval=20"), "step 30", "ckpt.pt", id="torch_char_lm",
        marks=pytest.mark.full,
    ),
    pytest.param(music(), "epoch 1 batch", "last.keras", id="tf_music_transformer", marks=pytest.mark.full),
]  # fmt: skip


@pytest.mark.parametrize(("program", "text", "file"), SHORT)
def test_example_killed_in_the_middle_saves_the_same_files(reference, new_place, program, text, file):
    expected = reference(program)
    assert any(name.endswith(file) for name in expected.files)
    life = live(new_place(program), "5batches", [Moment(text=text), Moment(delay_s=4.0, is_whole_group=False)])
    assert differences(expected, life) == []
    assert life.resumes


@pytest.mark.full
def test_music_transformer_runs_from_the_committed_inst_info(reference, new_place):
    expected = reference(music())
    place = new_place(music())
    place.run_directory.mkdir()
    shutil.copy(EXAMPLES.parent / "tf-ckpt" / "inst.info", place.run_directory)
    life = live(place, "5batches", [Moment(text="epoch 1 batch")])
    assert differences(expected, life) == []
    assert "training loop found" not in "".join(attempt.stderr for attempt in life.attempts)
    assert life.resumes


def _moments(rng: random.Random, expected: Life) -> list[Moment]:
    """Four moments: one while the set-up code runs, mostly, three later and later in the training."""
    lines = expected.attempts[0].stdout.splitlines()
    places = sorted(rng.sample(range(len(lines) - 1), 3))
    moments = [Moment(text=lines[place].split(":")[0], delay_s=rng.uniform(0, 0.7)) for place in places]
    moments.insert(rng.randrange(4), Moment(delay_s=rng.uniform(0.2, 8.0)))
    return [dataclasses.replace(one, is_whole_group=rng.random() < 0.5) for one in moments]


@pytest.mark.soak
@pytest.mark.parametrize(("program", "text", "file"), SHORT)
def test_example_survives_kills_at_random_moments(reference, new_place, program, text, file, note):
    expected = reference(program)
    rng = random.Random(seed_of(program.name))
    lives = []
    while sum(one.num_kills for one in lives) < SOAK_KILLS:
        moments = _moments(rng, expected)
        lives.append(live(new_place(program), rng.choice(["auto", "epoch", "7batches", "1s"]), moments))
    problems = [problem for one in lives for problem in differences(expected, one)]
    note(program.name, lives, problems)
    assert problems == []
    assert sum(len(one.resumes) for one in lives) >= SOAK_KILLS // 2
