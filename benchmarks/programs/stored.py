"""`python stored.py METHOD MEGABYTES LEAVES SAVES FOLDER`: save a model and its Adam by one of the ways there are, while it trains.

Prints one JSON object: seconds that each save kept the training waiting and took until it was durable, seconds to load it into live
tensors from a file that is not in memory, bytes, extra memory at its most, and how much slower a step of the training was meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

MEGABYTES, LEAVES, SAVES, FOLDER = float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])
#: What a save gives back: waits until it is on the disk. Of one that has waited already, None.
Wait = Callable[[], Any] | None


def build(megabytes: float, leaves: int) -> tuple[Any, Any]:
    """A model and an Adam that has made a step: three leaves for each parameter."""
    count = max(1, leaves // 3)
    size = int(megabytes * 1e6 / 12 / count)
    model = torch.nn.ParameterList([torch.randn(size) for _ in range(count)])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for one in model.parameters():
        one.grad = torch.zeros_like(one)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


class Method:
    """One way to save."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def state(self) -> dict[str, Any]:
        """As the frameworks' own documentation does it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that has a size, by name."""
        found = {f"model.{name}": value.data for name, value in self.model.named_parameters()}
        for number, one in enumerate(self.model.parameters()):
            found |= {f"optimizer.{number}.{key}": value for key, value in self.optimizer.state[one].items()}
        return found

    def put(self, loaded: dict[str, Any]) -> None:
        """A loaded `state`."""
        self.model.load_state_dict(loaded["model"])
        self.optimizer.load_state_dict(loaded["optimizer"])

    def save(self, path: Path) -> Wait:
        raise NotImplementedError

    def load(self, path: Path) -> None:
        raise NotImplementedError


def sync(*paths: Path) -> None:
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        os.fsync(number)
        os.close(number)


class Detrain(Method):
    """What a session does at a header and at a resume, of these two roots: look at them, copy, write beside the training."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer)
        import detrain.adapters.torch
        import detrain.state.handlers.standard  # noqa: F401
        from detrain.session.background import Background
        from detrain.state.census import Census
        from detrain.state.restore import Origins
        from detrain.state.retrace import Retracer
        from detrain.store.staging import Staging

        self.staging, self.background, self.sequence, self.last = Staging(), Background(), 0, None
        first = self.walk()
        self.origins, self.census, self.retracer = Origins(first), Census(first), Retracer()

    def roots(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def walk(self) -> Any:
        from detrain.state.walk import Walk

        walk = Walk()
        for name, value in self.roots().items():
            walk.root(name, value)
        return walk.run()

    def take(self) -> Any:
        from dataclasses import replace

        with torch._C.DisableTorchFunction():
            tree = self.retracer.walk(self.roots(), {}, self.census).tree
        copies = self.staging.copy(tree.arrays)
        assert copies is not None
        return replace(tree, arrays=copies)

    def save(self, path: Path) -> Wait:
        from detrain.state.collector import collector_paused
        from detrain.store.commit import commit
        from detrain.store.meta import Meta

        with collector_paused():  # also while what was looked at is let go of
            taken = self.take()
        self.sequence += 1
        meta = Meta(self.sequence)
        self.background.begin(lambda: commit(path, taken, meta, self.last))

        def wait() -> None:
            while self.background.is_busy:  # whoever waits for it lets it take no breaks
                time.sleep(0.005)
            self.last = self.background.wait()

        return wait

    def load(self, path: Path) -> None:
        from detrain.state.restore import Restore
        from detrain.store import checkpoint

        checkpoint.load(path)  # before the script begins: each file is read, and its digests are checked
        _, tree = checkpoint.load(path, is_checked=True)
        Restore(tree, self.walk(), self.origins).run(self.roots())


class TorchSave(Method):
    """`torch.save`, sync, rename."""

    def save(self, path: Path) -> Wait:
        torch.save(self.state(), path.with_suffix(".tmp"))
        sync(path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        sync(path.parent)
        return None

    def load(self, path: Path) -> None:
        self.put(torch.load(path, mmap=True))


class Safetensors(Method):
    """`safetensors`, sync, rename; the tensors only, without what else is in an optimizer's state."""

    def save(self, path: Path) -> Wait:
        from safetensors.torch import save_file

        save_file(self.tensors(), path.with_suffix(".tmp"))
        sync(path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
        sync(path.parent)
        return None

    def load(self, path: Path) -> None:
        from safetensors import safe_open

        tensors = self.tensors()
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensors[name].copy_(file.get_tensor(name))


class Distributed(Method):
    """`torch.distributed.checkpoint.save`, which syncs by itself."""

    def save(self, path: Path) -> Wait:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.state(), checkpoint_id=path)
        return None

    def load(self, path: Path) -> None:
        import torch.distributed.checkpoint as dcp

        state = self.state()
        dcp.load(state, checkpoint_id=path)
        self.put(state)


class DistributedAsync(Distributed):
    """`torch.distributed.checkpoint.async_save`."""

    def save(self, path: Path) -> Wait:
        import torch.distributed.checkpoint as dcp

        return dcp.async_save(self.state(), checkpoint_id=path).result


class Lightning(Method):
    """`Trainer.save_checkpoint`, which `ModelCheckpoint` calls; nothing is synced."""

    is_async = False

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer)
        import lightning
        from lightning.pytorch.plugins.io import AsyncCheckpointIO

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.inner = model

            def configure_optimizers(self) -> Any:
                return optimizer

            def training_step(self, *_: Any) -> Any:
                return None

        self.plugin = AsyncCheckpointIO() if self.is_async else None
        self.trainer = lightning.Trainer(
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, max_steps=1,
            accelerator="cpu", plugins=[self.plugin] if self.plugin else None,
        )  # fmt: skip
        self.trainer.fit(Module(), torch.utils.data.DataLoader([0]))

    def save(self, path: Path) -> Wait:
        self.trainer.save_checkpoint(path)
        if self.plugin is None:
            return None
        writer = self.plugin._executor

        def wait() -> None:
            writer.submit(int).result()  # it does one thing after the other

        return wait

    def load(self, path: Path) -> None:
        found = torch.load(path, mmap=True, weights_only=False)
        self.put({"model": {k.removeprefix("inner."): v for k, v in found["state_dict"].items()},
                  "optimizer": found["optimizer_states"][0]})  # fmt: skip


class LightningAsync(Lightning):
    """With its `AsyncCheckpointIO`."""

    is_async = True


class Bare(Method):
    """The physical limits: one `memcpy` of the state for the stall, one sequential write and sync, one sequential read."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__(model, optimizer)
        size = sum(one.nbytes for one in self.tensors().values())
        self.source, self.target = np.random.default_rng(0).integers(0, 255, size, np.uint8), np.ones(size, np.uint8)

    def save(self, path: Path) -> Wait:
        ctypes.memmove(self.target.ctypes.data, self.source.ctypes.data, len(self.source))

        def wait() -> None:
            with open(path, "wb", buffering=0) as file:
                left = memoryview(self.target)
                while left:
                    left = left[file.write(left[: 64 << 20]) :]
                os.fsync(file.fileno())

        return wait

    def load(self, path: Path) -> None:
        with open(path, "rb", buffering=0) as file:
            left = memoryview(self.source)
            while left:
                left = left[file.readinto(left[: 64 << 20]) :]


METHODS = {
    "bare": Bare, "detrain": Detrain, "torch.save": TorchSave, "safetensors": Safetensors, "dcp.save": Distributed,
    "dcp.async_save": DistributedAsync, "lightning": Lightning, "lightning async": LightningAsync,
}  # fmt: skip


def memory(field: str) -> float:
    """Megabytes that /proc tells of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1e3 for line in file if line.startswith(field))


def forget(path: Path) -> int:
    """Drop a checkpoint from the system's memory; returns its bytes."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    for one in files:
        number = os.open(one, os.O_RDONLY)
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(number)
    return sum(one.stat().st_size for one in files)


class Training:
    """Steps of another model than the one that is saved, so that each takes the same time."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
        self.data = torch.randn(64, 256)

    def step(self) -> float:
        """Seconds."""
        began_s = time.monotonic()
        self.model(self.data).square().mean().backward()
        return time.monotonic() - began_s


def measure_save(method: Method, training: Training, path: Path) -> dict[str, float]:
    with torch.no_grad():
        for one in method.tensors().values():
            one.add_(1e-3)  # as a step does: everything has changed
    alone = [training.step() for _ in range(50)]
    Path("/proc/self/clear_refs").write_text("5")
    before, began_s = memory("VmRSS"), time.monotonic()
    wait = method.save(path)
    stall_s = time.monotonic() - began_s
    meanwhile: list[float] = []
    if wait is not None:
        import threading

        ended: list[float] = []
        waiting = threading.Thread(target=lambda: (wait(), ended.append(time.monotonic())))
        waiting.start()
        while not ended:
            meanwhile.append(training.step())
        waiting.join()
        durable_s = ended[0] - began_s
    else:
        durable_s = stall_s
    return {
        "stall_s": stall_s, "durable_s": durable_s, "memory_mb": memory("VmHWM") - before,
        "slower": sum(meanwhile) / len(meanwhile) / statistics.median(alone) if len(meanwhile) > 3 else 1.0,
    }  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    model, optimizer = build(MEGABYTES, LEAVES)
    method, training = METHODS[sys.argv[1]](model, optimizer), Training()
    found: dict[str, list[float]] = {}
    for number in range(SAVES + 1):
        path = FOLDER / f"{number}.ckpt"
        for name, value in measure_save(method, training, path).items():
            found.setdefault(name, []).append(value)
        found.setdefault("bytes", []).append(forget(path))
        began_s = time.monotonic()
        method.load(path)
        found.setdefault("load_s", []).append(time.monotonic() - began_s)
    # The first makes what the later ones use again: threads, memory, imports.
    print(json.dumps({"first": {k: v[0] for k, v in found.items()}, **{k: v[1:] for k, v in found.items()}}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with contextlib.redirect_stderr(io.StringIO()):
        main()
