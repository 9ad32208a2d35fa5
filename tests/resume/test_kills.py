"""Kill a program, run it again: every bit that comes out is an uninterrupted run's."""

import dataclasses
import os
from pathlib import Path

import pytest

from tests.tiers import full_but

from .conftest import seed_of
from .harness import Moment, differences, environment, live, live_at_random
from .programs import NEWCOMERS, PROGRAMS, QUICK, Program

#: Programs that cannot be resumed, which must be said; the test below holds what is said.
REFUSED = {
    "threads_prefetching": "threads.Thread",
    "persistent_workers_of_old": "train.loader._iterator.workers",
    "state_kept_by_persistent_workers": "train.loader._iterator.workers",
}
RESUMED = [name for name in PROGRAMS if name not in REFUSED]
#: In the PYTHONPATH of a process, it compares walks.
COMPARED = Path(__file__).with_name("compared")
SOAK_KILLS = int(os.environ.get("DETRAIN_SOAK_KILLS", "20"))


@pytest.mark.parametrize("program", full_but(NEWCOMERS, QUICK), indirect=True)
def test_program_killed_twice_gives_the_same_bits(program, killed, reference):
    num_batches = len(reference(program).attempts[0].batches)
    life = killed(program, [Moment(batches=num_batches * 2 // 3), Moment(batches=3, is_whole_group=False)])
    assert life.num_kills == 2
    assert len(life.resumes) == 2


#: What is killed as a user starts it, without a fork server: each attempt starts an interpreter and imports torch.
WHOLE = [
    "loader_workers_2", "nothing_seeded", "kept_by_address", "owners_of_threads", "csv_held_open", "hook_handle_kept_over_epochs",
    "state_of_classes", "early_stopping_best_state", "generator_loader", "while_true", "folds",
    "entropy_drawn_by_workers", "objects_sent_back_by_spawned_processes",
]  # fmt: skip
#: Libraries draw entropy while they are loaded, which a forked attempt has behind it: what these draw then is something else.
DRAWING_ENTROPY = {"entropy_drawn_by_workers", "nothing_seeded"}


@pytest.mark.parametrize(
    "name",
    [
        WHOLE[0],
        *(pytest.param(name, marks=pytest.mark.soak) for name in WHOLE[4:-2]),
        *full_but([], [*WHOLE[1:4], *WHOLE[-2:]]),
    ],
)
def test_program_started_as_a_user_starts_it_and_killed_has_the_bits_of_one_that_was_forked(name, new_place, reference):
    whole = dataclasses.replace(PROGRAMS[name], is_whole=True)
    expected = reference(whole if name in DRAWING_ENTROPY else PROGRAMS[name])
    life = live(new_place(whole), "1batches", [Moment(batches=len(expected.attempts[0].batches) * 2 // 3)])
    assert not differences(expected, life)
    assert life.num_kills == 1
    assert len(life.resumes) == 1


@pytest.mark.parametrize(
    ("program", "moment"),
    [*((name, Moment(batches=20)) for name in REFUSED), ("persistent_workers_of_old", Moment(text="behind 1"))],
    indirect=["program"],
)
def test_what_cannot_be_resumed_is_named_and_refused(program, moment, killed, reference):
    place = killed.new_place(program)
    first = place.attempt("1batches", moment)
    assert first.is_killed
    assert f"warning: {REFUSED[program.name]}" in first.stderr
    second = place.attempt("1batches")
    assert second.status == 2, second.stderr
    assert f"not in the checkpoint: {REFUSED[program.name]}" in second.stderr


LOSSES_OF_FOUR_BATCHES = """\
import time
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
total = 0.0
for batch in range(40):
    x = torch.randn(16, 4)
    total = total + (model(x) - x.sum(1, keepdim=True)).square().mean()
    if batch % 4 == 3:
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(total, list(model.parameters()))):
            parameter.grad = gradient
        optimizer.step()
        total = 0.0
    print("batch", 0, batch, repr(float(total)), flush=True)
    time.sleep(0.01)
print("batch end", model.weight.tolist(), model.bias.tolist(), flush=True)
"""


def test_checkpoint_between_a_loss_and_its_gradient_is_set_aside_when_that_shows(killed, reference):
    program = Program("losses_of_four_batches", LOSSES_OF_FOUR_BATCHES)
    expected = reference(program).attempts[0]
    place = killed.new_place(program)
    assert place.attempt("3batches", Moment(batches=23)).is_killed  # checkpoints after 3, 6, …: of 21 of them the last
    failed = place.attempt("3batches")
    assert failed.status == 1
    assert "a gradient flows into train.total, which was made by AddBackward0" in failed.stderr
    assert "has been set aside" in failed.stderr
    attempt = failed
    while attempt.status:
        attempt = place.attempt("3batches")
    assert attempt.resumed
    assert expected.batches[-len(attempt.batches) :] == attempt.batches


@pytest.mark.parametrize("batches", [3, 6])  # it has been prepared and is to start; it goes on
def test_a_resume_within_a_recording_of_the_profiler_goes_on_with_one(batches, killed, reference):
    program = PROGRAMS["inference_tensors_and_profiler"]
    last = killed(program, [Moment(batches=batches)]).attempts[-1]
    _, _, rest = reference(program).attempts[0].stdout.partition(last.batches[0])
    assert last.stdout.count("trace") == rest.count("trace") > 0


@pytest.mark.soak
@pytest.mark.parametrize("program", [name for name in RESUMED if name not in QUICK], indirect=True)
def test_every_other_program_killed_twice_gives_the_same_bits(program, killed, reference):
    num_batches = len(reference(program).attempts[0].batches)
    life = killed(program, [Moment(batches=num_batches * 2 // 3), Moment(batches=3, is_whole_group=False)])
    assert life.num_kills == 2
    assert len(life.resumes) == 2


@pytest.mark.soak
@pytest.mark.parametrize("program", RESUMED, indirect=True)
def test_every_program_survives_kills_at_random_moments(program, killed, reference, note):
    expected = reference(program)
    lives = live_at_random(lambda: killed.new_place(program), expected, SOAK_KILLS, seed_of(program.name))
    problems = [problem for life in lives for problem in differences(expected, life)]
    note(program.name, lives, problems)
    told = [
        f"  {moment}: {attempt.status} {attempt.own_words}"
        for life in lives
        for moment, attempt in zip([*life.moments, "to the end"], life.attempts, strict=False)
    ]
    assert not problems, "\n".join([*problems, "attempts:", *told])
    assert sum(life.num_kills for life in lives) >= SOAK_KILLS


@pytest.mark.soak
@pytest.mark.parametrize("program", RESUMED, indirect=True)
def test_every_walk_along_a_route_yields_what_a_walk_from_anew_yields(program, new_place, tmp_path):
    told = tmp_path / "compared"
    told.touch()
    own = {
        **program.environment,
        "COMPARED": str(told),
        "PYTHONPATH": os.pathsep.join([str(COMPARED), environment()["PYTHONPATH"]]),
    }
    attempt = new_place(dataclasses.replace(program, environment=own)).attempt("1batches")
    first, *rest = told.read_text().splitlines()
    assert first == "on", "no walk would be compared"
    assert set(rest) <= {"same"}
    assert attempt.status == 0
