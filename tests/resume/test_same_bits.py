"""What must not change a bit: how often is saved, how many workers load, whether detrain is there at all."""

import pytest

from tests.tiers import full_but

from .harness import Life, Moment, Place, differences, uninterrupted
from .programs import PROGRAMS, Program
from .programs.prelude import PRELUDE

#: Draws before and after a file is loaded, in and between batches, and makes its model from what the system gives.
UNSEEDED = """\
import secrets

first = secrets.token_hex(4)
import later

torch.seed()
drawn = [first, later.drawn, secrets.token_hex(4), np.random.default_rng().integers(1000), random.Random().random()]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in range(9):
    x, y = torch.randn(4, 6), torch.randint(2, (4,))
    log(0, batch, (step(model, optimizer, x, y), *drawn, secrets.token_hex(4)))
"""


def _differs(reference, life):
    return differences(reference, life) or life.attempts[0].stdout != reference.attempts[0].stdout


@pytest.mark.parametrize("every", full_but(["auto"], ["epoch", "1batches", "7batches", "0.02s", "auto"]))
def test_bits_are_the_same_for_any_rhythm_of_checkpoints(every, reference):
    program = PROGRAMS["early_stopping_best_state"]
    assert not _differs(reference(program), reference(program, every))


@pytest.mark.parametrize("name", full_but([], ["two_loops_per_epoch", "deque_of_losses", "rnn_carried_state"]))
def test_a_checkpoint_at_every_batch_changes_no_bit(name, reference):
    assert not _differs(reference(PROGRAMS[name]), reference(PROGRAMS[name], "1batches"))


@pytest.mark.parametrize(
    "name", full_but(["loader_workers_4"], ["loader_workers_1", "loader_workers_4", "loader_prefetch_5"])
)
def test_bits_are_the_same_for_any_number_of_workers(name, reference):
    assert not _differs(reference(PROGRAMS["loader_workers_2"]), reference(PROGRAMS[name]))


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 4])
def test_bits_are_the_same_for_any_number_of_persistent_workers(workers, reference):
    # Not the bits of workers that are started anew: torch draws a base seed less per epoch for persistent ones.
    program = PROGRAMS["loader_workers_2_persistent"]
    other = Program(f"{workers} persistent", program.script.replace("num_workers=2", f"num_workers={workers}"))
    assert not _differs(reference(program), reference(other))


def test_set_up_code_draws_the_same_entropy_in_every_attempt(tmp_path):
    # Attempts differ in what detrain itself must do: compile the files anew or not, look for the loops or know them.
    script = PRELUDE + UNSEEDED
    place = Place(
        tmp_path,
        Program("unseeded", script, {"later.py": "import os\n\nfor _ in range(2):\n    drawn = os.urandom(4).hex()\n"}),
    )
    lines = []
    for every in ["never", "1batches", "never", "1batches"]:
        for path in place.run_directory.glob("checkpoint_*"):
            path.unlink()
        attempt = place.attempt(every, Moment(batches=4))
        assert not attempt.resumed
        lines.append(attempt.batches[:4])
    assert lines == [lines[0]] * 4


#: Starts its workers anew in each epoch, and draws after that.
DRAWING = """\
import secrets, tempfile, uuid

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=8, num_workers=1)
for epoch in range(4):
    name = uuid.uuid4().hex
    for batch, (x, y) in enumerate(loader):
        with tempfile.TemporaryFile():
            drawn = secrets.token_hex(4)
        log(epoch, batch, (step(model, optimizer, x, y), name, drawn))
"""


@pytest.mark.full
def test_what_libraries_draw_once_in_a_process_does_not_move_what_a_resumed_script_draws(killed):
    program = Program("drawing", PRELUDE + DRAWING, environment={"DETRAIN_WAIT_FOR_DISK": "1"})
    life = killed(program, [Moment(batches=13), Moment(batches=2)], "epoch")
    assert life.resumes[0].startswith("epoch 2, batch 0")


def test_workers_draw_different_numbers_in_each_batch_and_epoch(reference):
    lines = [line.split()[3] for line in reference(PROGRAMS["loader_workers_2"]).attempts[0].batches]
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    "name",
    full_but(
        ["early_stopping_best_state"],
        ["two_loops_per_epoch", "early_stopping_best_state", "generators_of_the_user", "lbfgs"],
    ),
)
def test_a_script_reproducible_by_itself_gives_the_bits_of_plain_python(name, reference):
    assert not _differs(reference(PROGRAMS[name], ""), reference(PROGRAMS[name]))


def test_a_script_that_seeds_nothing_gives_the_same_bits_twice(tmp_path, reference):
    program = PROGRAMS["nothing_seeded"]
    again = uninterrupted(tmp_path, program)
    assert not _differs(reference(program), again)


def test_another_seed_gives_other_bits_where_the_script_seeds_nothing(tmp_path, killed, reference):
    program = PROGRAMS["nothing_seeded"]
    other = killed.new_place(program).attempt("never", options=["--seed", "5"])
    assert other.status == 0
    assert other.batches != reference(program).attempts[0].batches


@pytest.mark.parametrize("workers", full_but([], [0, 2]))
@pytest.mark.parametrize(
    "moments",
    [
        [Moment(text="set-up done")],
        [Moment(batches=24, delay_s=0.003)],
        [Moment(text="validating 0")],
        [Moment(batches=20, is_saving=True), Moment(batches=1, is_saving=True, is_whole_group=False)],
        [Moment(batches=20), Moment(batches=1), Moment(batches=1), Moment(batches=2)],
    ],
    ids=["set-up", "last batch of an epoch", "validation", "saving", "a resume of a resume of a resume"],
)
def test_a_kill_at_any_stage_loses_nothing(moments, workers, killed):
    program = PROGRAMS["validation_loader_with_workers"]
    script = program.script.replace("for epoch in", 'print("set-up done")\nfor epoch in', 1)
    if not workers:
        script = script.replace("num_workers=2, persistent_workers=True", "num_workers=0").replace(
            "num_workers=1", "num_workers=0"
        )
    life = killed(Program(f"stages with {workers} workers", script), moments)
    assert life.num_kills == len(moments)


@pytest.mark.parametrize(
    "name", full_but(["loader_enumerate"], ["generator_endless", "generator_of_a_shuffle_buffer", "loader_enumerate"])
)
def test_attempt_after_a_kill_at_the_very_end_gives_the_same_bits(name, tmp_path, reference):
    # All loops are known by then, and inst.info says so.
    program = PROGRAMS[name]
    place = Place(tmp_path, program)
    first = place.attempt("3batches")
    assert first.status == 0
    (place.run_directory / "finished").unlink()
    latest = sorted(place.run_directory.glob("checkpoint_*.h5"), key=lambda path: path.stat().st_mtime)
    latest[-1].unlink()  # the one behind the loop
    again = place.attempt("3batches")
    assert again.resumed
    assert not differences(reference(program), Life([first, again], place.read_files()))


SLOW_BEFORE_BATCHES = (
    PRELUDE
    + """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    print("preparing", epoch, flush=True)
    time.sleep(1.5 if epoch == 0 else 0)
    batch = 0
    for x, y in loader:
        log(epoch, batch, step(model, optimizer, x, y))
        batch += 1
save(model=model, optimizer=optimizer)
"""
)


@pytest.mark.full
def test_loader_begins_after_a_checkpoint_before_its_first_batch(killed, reference):
    """An iterator that is made before the generators are put back draws what the loader is to draw."""
    program = Program("slow_before_batches", SLOW_BEFORE_BATCHES, environment={"DETRAIN_WAIT_FOR_DISK": "1"})
    life = killed(program, [Moment(batches=5), Moment(batches=5)], every="0.6s")
    assert life.resumes == ["epoch 0, batch 0 from checkpoint_0_0.h5"]
