"""One rank of several is refused in one sentence."""

import pytest

from detrain import ranks
from detrain.errors import UsageError


@pytest.mark.parametrize(
    "variables",
    [
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'},
        {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'},
    ],
)
def test_several_are_refused(variables):
    with pytest.raises(
        UsageError, match=r"this process is one of \d+ ranks, and detrain cannot checkpoint these as one"
    ):
        ranks.refuse_several(variables)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "auto"},
        {"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"},  # each may train by itself
        {"TF_CONFIG": '{"cluster": {"worker": ["a:1"], "evaluator": ["b:1"]}}'},
        {"TF_CONFIG": "not JSON"},
        {"TF_CONFIG": "[]"},
    ],
)
def test_one_is_not(variables):
    assert ranks.refuse_several(variables) is None


def test_size_of_a_group_is_told_before_it_is_joined_where_the_script_says_it_and_behind(monkeypatch):
    import torch

    from detrain.adapters.torch import distributed

    for module in (torch.distributed, torch.distributed.distributed_c10d):
        monkeypatch.setattr(module, "init_process_group", module.init_process_group)
    told = []
    distributed.report_groups(lambda size: told.append((size, torch.distributed.is_initialized())))
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    torch.distributed.destroy_process_group()
    assert told == [(1, False), (1, True)]
