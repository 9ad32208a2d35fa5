"""A service that a script reports to, by a process beside it, is no obstacle to a resume."""

from __future__ import annotations

import pytest

pytest.importorskip("wandb", reason="Weights & Biases is not installed: pip install wandb")

TRAINING = """
import hashlib, os
import torch, wandb
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(20, 4, 6)
run = wandb.init(mode="offline", project="demo", config={"lr": 1e-3})
wandb.watch(model, log_freq=5)
for epoch in range(3):
    for batch in range(20):
        optimizer.zero_grad()
        loss = model(data[batch]).square().mean()
        loss.backward()
        optimizer.step()
        wandb.log({"loss": loss.item(), "epoch": epoch})
        if os.environ.get("DIE") == f"{epoch} {batch}":
            os.kill(os.getpid(), 9)
print("step", run._local_step, run.id)
wandb.finish()
print(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest())
"""


def test_a_run_that_reports_to_weights_and_biases_offline_is_resumed_exactly(script, tmp_path) -> None:
    one = script(TRAINING)
    (tmp_path / "whole").mkdir()
    expected = one.attempt("whole", TMPDIR=str(tmp_path / "whole"))
    folder = str(tmp_path)  # where a killed attempt leaves temporary folders, whose names the next one meets
    one.attempt("run", "--every", "7batches", status=-9, DIE="1 9", TMPDIR=folder)
    assert "not-captured" not in one.said
    one.attempt("run", "--every", "7batches", status=-9, DIE="2 12", TMPDIR=folder)
    assert "resumed at epoch 1, batch" in one.said
    assert one.attempt("run", "--every", "7batches", TMPDIR=folder) == expected
    assert "resumed at epoch 2, batch" in one.said
    assert one.said.count("warning") == 0
    # Each attempt leaves a folder of its own, all of one run.
    assert len({path.name.partition("-run-")[2][16:24] for path in (one.folder / "wandb").glob("offline-run-*")}) == 1
