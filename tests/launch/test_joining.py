"""What several ranks cannot be asked for is said before anything begins."""

from dataclasses import replace

import pytest

from detrain.errors import ResumeRefused, UsageError
from detrain.job.place import Place
from detrain.launch.joining import of_rank
from detrain.launch.opening import OpenRun
from detrain.launch.request import Request
from detrain.store.job import JobDirectory

PLACE = Place(1, 3, "127.0.0.1", 29501, "job", "torchrun")


@pytest.fixture
def request_of_run(tmp_path):
    """A request for a run in `tmp_path/run`."""
    return Request("train.py", "", [], "train", str(tmp_path / "run"))


def test_a_rank_has_a_directory_of_its_own_within_the_job_s(request_of_run, tmp_path):
    found = of_rank(request_of_run, PLACE)
    assert (found.job, found.ckpt_dir) == (str(tmp_path / "run"), str(tmp_path / "run" / "rank_1"))
    assert (found.rank, found.size) == (1, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trust_changes": True}, "--trust-changes is for one process"),
        ({"on_inexact": "restart"}, "--on-inexact restart is for one process"),
    ],
)
def test_options_of_one_process(request_of_run, changes, said):
    with pytest.raises(UsageError, match=said):
        of_rank(replace(request_of_run, **changes), PLACE)


def test_a_directory_of_the_other_kind_is_refused(request_of_run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(ResumeRefused, match="holds a run of one process, and this is rank 1 of 3"):
        of_rank(request_of_run, PLACE)
    (tmp_path / "run" / "run.json").unlink()
    JobDirectory(tmp_path / "run").begin(3)
    with pytest.raises(ResumeRefused, match="holds a job of several ranks, and this process trains alone"):
        OpenRun(request_of_run)


def test_ranks_draw_numbers_of_their_own_and_the_first_those_of_one_process(request_of_run):
    seeds = [replace(request_of_run, seed=4, rank=rank, size=3).rank_seed for rank in range(3)]
    assert seeds[0] == 4
    assert len(set(seeds)) == 3
    assert seeds == [replace(request_of_run, seed=4, rank=rank, size=3).rank_seed for rank in range(3)]
