"""`%%detrain` in a real kernel that is killed, and `detrain.run` from a program."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

SETUP = """
import torch, time, os
torch.manual_seed(3)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.rand(40, 2), torch.rand(40, 1))
loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
"""
TRAIN = """%%detrain fit --every 1batches --return model,losses
losses = []
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print("loss", len(losses), loss.item(), flush=True)
        time.sleep(float(os.environ.get("WAIT", "0")))
"""


class Kernel:
    """A kernel in a folder, as a notebook's server starts it."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.manager = jupyter_client.KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, **variables})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, number: int, cell: str, until: str = "") -> str:
        """What a cell prints, or what is wrong with it; only up to a text if there is one."""
        sent = self.client.session.msg(
            "execute_request",
            {"code": cell, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False},
            metadata={"cellId": f"cell-{number}"},
        )
        self.client.shell_channel.send(sent)
        self.latest = sent["header"]["msg_id"]
        return self.rest(until)

    def rest(self, until: str = "") -> str:
        """What the latest cell goes on to print."""
        printed = ""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != self.latest:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                printed += f"{content['ename']}: {content['evalue']}"
            ends = message["msg_type"] == "status" and content["execution_state"] == "idle"
            if ends or (until and until in printed):
                return printed

    def kill(self) -> None:
        os.kill(self.manager.provisioner.pid, signal.SIGKILL)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    kernels: list[Kernel] = []

    def begin(name: str, **variables: str) -> Kernel:
        (tmp_path / name).mkdir(exist_ok=True)
        kernels.append(Kernel(tmp_path / name, **variables))
        kernels[-1].run(0, "%load_ext detrain")
        return kernels[-1]

    yield begin
    for one in kernels:
        one.close()


def losses_in(text: str) -> list[str]:
    return re.findall(r"^loss .*$", text, re.MULTILINE)


@pytest.mark.full
def test_a_kernel_that_is_killed_goes_on_in_the_next_and_brings_variables_back(start) -> None:
    whole = start("whole")
    whole.run(1, SETUP)
    expected = losses_in(whole.run(2, TRAIN))
    assert len(expected) == 30

    killed = start("run", WAIT="0.2")
    killed.run(1, SETUP)
    killed.run(2, TRAIN, until="loss 12 ")
    killed.kill()
    again = start("run")
    again.run(1, SETUP)
    text = again.run(2, TRAIN)
    for _ in range(50):  # the killed kernel's run ends by itself, and saves
        if "another attempt" not in text:
            break
        time.sleep(0.1)
        text = again.run(2, TRAIN)
    rest = losses_in(text)
    assert 10 <= len(rest) <= 20
    assert rest == expected[-len(rest) :]
    told = again.run(3, "print(len(losses), losses[-1], type(model).__name__)")
    assert told == f"30 {expected[-1].split()[2]} Linear\n"
    assert whole.run(3, "print(model.weight.sum().item())") == again.run(4, "print(model.weight.sum().item())")


@pytest.mark.full
def test_an_interrupted_cell_saves_and_what_is_wrong_is_said_in_a_line(start) -> None:
    kernel = start("run", WAIT="0.1")
    assert kernel.run(1, TRAIN).startswith("UsageError: no cell that this kernel has run gives a value to loader, ")
    kernel.run(2, SETUP)
    kernel.run(1, TRAIN, until="loss 15 ")
    kernel.manager.interrupt_kernel()
    assert kernel.rest().endswith("KeyboardInterrupt: ")
    text = kernel.run(1, TRAIN)
    assert re.search(r"^detrain: resumed at epoch 1, batch [4-9] ", text, re.MULTILINE), text
    assert losses_in(text)[-1].startswith("loss 30 ")


PROGRAM = """
import sys
import detrain

def train(epochs, rate=0.1):
    import os, sys, torch
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], rate)
    for epoch in range(epochs):
        for batch in range(5):
            if (epoch, batch) == (1, 3) and "DIE" in os.environ:
                os.kill(os.getpid(), 9)
            optimizer.zero_grad()
            ((weight - torch.rand(3)) ** 2).sum().backward()
            optimizer.step()
    return weight.tolist(), sys.stdout.line_buffering, sys.stdout.write_through

if __name__ == "__main__":
    print(detrain.run(train, [3], {"rate": 0.2}, name=sys.argv[1], options=["--every", "1batches"]))
"""


@pytest.mark.full
def test_a_function_that_is_killed_and_called_again_returns_what_it_returns_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def call(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        return subprocess.run(
            [sys.executable, "program.py", name],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    whole = call("whole")
    assert whole.returncode == 0, whole.stderr
    killed = call("run", DIE="1")
    assert killed.returncode == 1
    assert "NotEnded: the run run was killed by signal 9" in killed.stderr
    again = call("run")
    assert "resumed at epoch 1, batch" in again.stderr
    assert again.stdout == whole.stdout
    weight, is_shown_at_once, is_in_pieces = ast.literal_eval(again.stdout)
    assert len(weight) == 3
    assert is_shown_at_once
    assert not is_in_pieces  # else what detrain says may stand within a line that `print` makes of several writes
