"""What a batch pays for the hooks, in calls of Python functions: a number that does not depend on the machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Prints the fewest calls of detrain's own functions in one iteration of the batch loop.
SCRIPT = """
import sys
import torch

weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
calls = [0]
fewest = 1_000_000

def count(frame, event, argument):
    calls[0] += event == "call" and "detrain" in frame.f_code.co_filename

sys.setprofile(count)
for epoch in range(3):
    batch = 0
    HEADER
        fewest = min(fewest, calls[0])
        calls[0] = 0
        batch += 1
        if batch % 100 == 1:
            (weight * weight).sum().backward()
            optimizer.step()
            calls[0] = 1_000_000  # this batch does not count
sys.setprofile(None)
print(fewest)
"""


@pytest.mark.parametrize(
    ("header", "most"),
    [
        # the ticker (2), the loop, the session (2), the ledger, its losses
        ("for number in range(400):", 7),
        # the hook and the session's search for the loop in place of the ticker's
        ("while batch < 400:", 7),
    ],
)
def test_an_iteration_calls_few_functions(tmp_path, header, most):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("HEADER", header))
    words = ["-m", "detrain", "run", "--ckpt-dir", str(tmp_path / "run"), "--every", "never", str(path)]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    assert 0 < int(done.stdout) <= most
