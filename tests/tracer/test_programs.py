"""Trace each program of the table: the nest, the lines and the loader are those that it says."""

import pytest

from .harness import Place, differences, expected_of
from .programs import NEWCOMERS, PROGRAMS, QUICK

TRAINING = [name for name, program in PROGRAMS.items() if program.is_training]


def all_of(names):
    """Every program as a parameter: `make test` traces a few, `make test-all` the quick ones, `make soak` the rest."""
    marks = {name: () if name in NEWCOMERS else pytest.mark.full if name in QUICK else pytest.mark.soak for name in names}
    return [pytest.param(name, marks=marks[name]) for name in names]


@pytest.mark.parametrize("name", all_of(PROGRAMS))
def test_the_nest_and_the_loader_are_found(name, tmp_path):
    place = Place(tmp_path, PROGRAMS[name])
    traced = place.trace()
    problems = differences(place, traced)
    assert not problems, "\n".join([*problems, "", traced.last_words])


@pytest.mark.soak
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_is_one_that_python_runs(name, tmp_path):
    program = PROGRAMS[name]
    for arguments in dict.fromkeys([program.arguments, program.vary or program.arguments]):
        done = Place(tmp_path, program).python(arguments)
        assert done.returncode == 0, done.stderr


def test_tracing_stops_long_before_the_epoch_ends(tmp_path):
    program = PROGRAMS["for_in_for"]
    place = Place(tmp_path, program)
    path = place.work / program.script
    text = path.read_text(encoding="utf-8")
    at_the_update = "        optimizer.step()  # <update>\n"
    assert at_the_update in text
    noted = text.replace(at_the_update, at_the_update + "        open('steps', 'a').write('step\\n')\n")
    path.write_text(noted.replace("default=64", "default=4096").replace("args.n", "4096"), encoding="utf-8")
    place.trace()
    steps = (place.work / "steps").read_text(encoding="utf-8").splitlines()
    assert 1 <= len(steps) < 2 * 64  # an epoch has 512 batches, and there are two rounds


def test_what_a_script_prints_goes_to_a_log_in_the_run_directory(tmp_path):
    program = PROGRAMS["step_in_the_header"]
    place = Place(tmp_path, program)
    path = place.work / program.script
    path.write_text("print('seen by the script alone')\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    traced = place.trace()
    assert "seen by the script alone" not in traced.stdout + traced.stderr
    logs = [path for path in place.run_directory.iterdir() if path.name != "inst.info" and path.is_file()]
    assert any("seen by the script alone" in path.read_text(errors="replace") for path in logs)


def test_the_table_is_long_and_its_entries_are_whole():
    assert len(PROGRAMS) >= 48
    assert set(NEWCOMERS) < set(QUICK) < set(PROGRAMS)
    for name in TRAINING:
        expected = expected_of(PROGRAMS[name])
        assert [loop.part for loop in expected.nest][-1] == "batch", name
        assert len([loop for loop in expected.nest if loop.part == "batch"]) == 1, name
        assert len([loop for loop in expected.nest if loop.part == "epoch"]) <= 1, name
        assert expected.update, name
        assert bool(expected.dl) == bool(PROGRAMS[name].loaders), name
    for name in PROGRAMS.keys() - set(TRAINING):
        assert expected_of(PROGRAMS[name]).nest == [], name
