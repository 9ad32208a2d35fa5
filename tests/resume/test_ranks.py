"""Several ranks, started by torchrun: one of them, all, or their launcher is killed; weights and generators of all are as uninterrupted."""

import contextlib
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import detrain.pipeline
from detrain.pipeline import planfile
from detrain.pipeline.topologyfile import of_levels
from detrain.store.ledger import Batch
from tests.pipeline.pipelined import plan_of

from .harness import environment

PROGRAMS = Path(__file__).with_name("ranks")
EXAMPLES = Path(__file__).parents[2] / "examples"
#: Nothing that belongs to a job that was killed lives longer. Seconds.
LONGEST_S = 30.0
#: How long to wait for a job's cut, or its end, before it is taken to hang: whole tests took six minutes on a slow machine. Seconds.
LONGEST_JOB_S = 600.0
#: What torch 2.13 itself ends with now and then after training in tensor parallel, also without detrain: a thread of its own is destroyed.
ABORTED = "terminate called without an active exception"


class Job:
    """One start of a job."""

    def __init__(
        self,
        folder: Path,
        num_ranks: int,
        *options: str,
        arguments: tuple[str, ...] = ("ddp",),
        plain: bool = False,
        every: str = "8batches",
    ) -> None:
        """`arguments`: the program, and what it is given."""
        self.folder, self.num_ranks = folder, num_ranks
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        if not plain:
            words += ["-m", "detrain", "run", "--every", every, *options]
        # Of a job that holds the folder.
        self._others = {one.pid for one in psutil.process_iter() if _is_of(one, folder)}
        example = EXAMPLES / arguments[0] / "train.py"
        program = str(example if example.exists() else PROGRAMS / f"{arguments[0]}.py")
        self.out, self.err = folder / "stdout", folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*words, program, *arguments[1:]], cwd=folder, env=environment(), stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self._cuts = self.cuts()

    @property
    def directory(self) -> Path:
        return self.folder / ".detrain" / next(iter(os.listdir(self.folder / ".detrain")), "none")

    def cuts(self) -> set[str]:
        """Of a single rank, which is no job, its checkpoints."""
        pattern = ".detrain/*/cuts/*.json" if self.num_ranks > 1 else ".detrain/*/checkpoint_*.h5"
        return {path.name for path in self.folder.glob(pattern)}

    def ranks(self) -> list[psutil.Process]:
        """In their order."""
        found = {}
        for one in psutil.Process(self.process.pid).children() if self.process.poll() is None else []:
            try:
                found[int(one.environ()["RANK"])] = one
            except (KeyError, psutil.Error):
                continue
        return [found[rank] for rank in sorted(found)]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + LONGEST_JOB_S
        while not condition() and self.process.poll() != 0:
            assert self.process.poll() is None, self.err.read_text()[-3000:]
            assert time.monotonic() < until_s
            time.sleep(0.001)

    def wait_for_cut(self) -> None:
        self.wait_until(lambda: not self.cuts() <= self._cuts)

    def wait_for_half_a_cut(self) -> None:
        """A rank has its part of a cut, and the cut is not whole."""

        def is_half() -> bool:
            parts = {path.name for path in self.folder.glob(".detrain/*/rank_*/checkpoint_*.h5")}
            return bool({f"{name}.json" for name in parts} - self.cuts() - self._cuts)

        self.wait_until(is_half)

    def end(self) -> tuple[int, float]:
        """Wait for everything that belongs to it; the exit status, and how long that took."""
        began_s = time.monotonic()
        status = self.process.wait(timeout=LONGEST_JOB_S)
        ended_s = time.monotonic()
        while any(_is_of(one, self.folder) and one.pid not in self._others for one in psutil.process_iter()):
            assert time.monotonic() < ended_s + 60, "a rank lives on"
            time.sleep(0.05)
        return status, time.monotonic() - began_s

    def finals(self) -> list[str]:
        return finals_in(self.out)


def finals_in(path: Path) -> list[str]:
    """What the ranks have ended with."""
    return sorted(line for line in path.read_text().splitlines() if line.startswith("final"))


def _is_of(one: psutil.Process, folder: Path) -> bool:
    """True for a launcher or a rank that lives, or a process of its own: torchrun gives ranks sessions of theirs, the folder is common."""
    try:
        return one.cwd() == str(folder) and one.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def kill(job: Job, what: str, choice: random.Random) -> None:
    ranks = job.ranks()
    chosen = {
        "random rank": choice.sample(ranks, min(len(ranks), 1)),
        "rank 0": ranks[:1], "last rank": ranks[-1:], "all ranks": ranks, "launcher": [psutil.Process(job.process.pid)] if ranks else [],
    }[what]  # fmt: skip
    for one in chosen:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What plain torchrun gives, by number of ranks and arguments; detrain, uninterrupted, where loader workers draw numbers.

    These are keyed by batch under detrain, so that another number of workers, or a resume, draws the same (docs/determinism.md).
    """
    known = {}

    def run(num_ranks: int, *arguments: str) -> list[str]:
        arguments = arguments or ("ddp",)
        key = (num_ranks, arguments)
        if key not in known:
            is_plain = "--workers" not in arguments
            job = completed(tmp_path_factory.mktemp("plain"), num_ranks, arguments=arguments, plain=is_plain)
            known[key] = job.finals()
            assert len(known[key]) == num_ranks
        return known[key]

    return run


def life(
    folder: Path, num_ranks: int, kills: list[str], *arguments: str, seed: int = 0, every: str = "8batches"
) -> Job:
    """Start the job, kill it in these ways one after the other, and let it come to its end; returns the last start."""
    arguments, choice = arguments or ("ddp",), random.Random(seed)
    for what in kills:
        job = Job(folder, num_ranks, arguments=arguments, every=every)
        if what == "between phases":
            job.wait_for_half_a_cut()
            what = "all ranks"
        else:
            job.wait_for_cut()
            time.sleep(choice.random() * 0.3)
        kill(job, what, choice)
        status, seconds = job.end()
        if not status or (job.directory / "finished").exists():
            return job  # it had come to its end, whatever has become of its launcher
        assert seconds < LONGEST_S
    return completed(folder, num_ranks, arguments=arguments, every=every)


def completed(folder: Path, num_ranks: int, *, arguments: tuple[str, ...], **options: Any) -> Job:
    """Start the job and wait for its end; once more where torch has aborted it."""
    job = Job(folder, num_ranks, arguments=arguments, **options)
    status, _ = job.end()
    if status and ABORTED in job.err.read_text():
        job = Job(folder, num_ranks, arguments=arguments, **options)
        status, _ = job.end()
    assert status == 0, job.err.read_text()
    assert "[cut-not-whole]" not in job.err.read_text()
    return job


def test_a_rank_is_killed_and_all_end_with_the_bits_of_plain_torchrun(tmp_path, expected):
    job = life(tmp_path, 2, ["last rank"], every="0.2s")  # so that beginnings of epochs are held in memory
    assert job.finals() == expected(2)
    assert "resumed at" in job.err.read_text()
    assert (job.directory / "finished").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "kills", [["last rank", "launcher"], ["all ranks", "between phases"], ["rank 0"]], ids=", ".join
)
def test_other_kills(tmp_path, expected, kills):
    job = life(tmp_path, 3, kills)
    assert job.finals() == expected(3)
    assert "resumed at" in job.err.read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("num_ranks", "arguments"),
    [
        (4, ("ddp", "--several", "--workers")),
        (3, ("ddp", "--shard")),
        (2, ("parallel", "tensor")),
        (4, ("parallel", "hybrid")),
        (3, ("parallel", "zero, power")),
        (3, ("pipelined", "gpt", "2-1", "1f1b-async", "1")),
        (3, ("pipelined", "dense", "1-2", "2bw", "4")),
    ],
    ids=str,
)
def test_other_ways_to_train(tmp_path, expected, num_ranks, arguments):
    job = life(tmp_path, num_ranks, ["last rank"], *arguments)
    assert job.finals() == expected(num_ranks, *arguments)
    assert "resumed at" in job.err.read_text()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize(
    ("num_ranks", "arguments"),
    [
        (2, ("ddp", "--cuda")),
        (3, ("ddp", "--cuda", "--several")),
        (1, ("ddp", "--cuda", "--nccl")),
        (1, ("ddp", "--cuda", "--nccl", "--shard")),
    ],
    ids=str,
)
def test_ranks_on_a_device(tmp_path, expected, num_ranks, arguments):
    """One device: ranks share it by way of gloo; NCCL has one rank."""
    job = life(tmp_path, num_ranks, ["last rank"], *arguments)
    assert job.finals() == expected(num_ranks, *arguments)
    assert "resumed at" in job.err.read_text()


@pytest.mark.full
@pytest.mark.parametrize("library", ["transformers", "accelerate", "lightning"])
def test_loops_of_libraries(tmp_path, expected, library):
    pytest.importorskip(library)
    job = life(tmp_path, 3, ["last rank"], "libraries", library)
    assert job.finals() == expected(3, "libraries", library)
    assert "resumed at" in job.err.read_text()


IMAGES = ("torch_pipeline_images", "--module", "resnet", "--epochs", "2")
TRANSLATION = ("torch_pipeline_translation", "--module", "gnmt4", "--width", "16", "--epochs", "2", "--bleu-every", "1")


@pytest.mark.parametrize(
    ("num_ranks", "replicas", "arguments", "files"),
    [
        pytest.param(*case, marks=tier)
        for tier, case in [
            (pytest.mark.full, (2, (), ("torch_ddp", "--epochs", "2", "--characters", "40000"), ("best.pt", "last.pt"))),
            (pytest.mark.soak, (4, (1, 1, 1, 1), IMAGES, ("log.csv", "last.pt"))),
            (pytest.mark.full, (4, (3, 1), (*IMAGES, "--schedule", "1f1b-async", "-b", "32"), ("log.csv", "last.pt"))),
            (pytest.mark.soak, (3, (1, 2), (*IMAGES, "--schedule", "2bw"), ("log.csv", "last.pt"))),
            (pytest.mark.soak, (4, (1, 1, 1, 1), (*TRANSLATION, "--schedule", "1f1b-async"), ("log.csv", "last.pt", "translated.txt"))),
            (pytest.mark.full, (3, (2, 1), TRANSLATION, ("log.csv", "last.pt", "translated.txt"))),
        ]
    ],
    ids=str,
)  # fmt: skip
def test_an_example_saves_the_same_files(tmp_path, num_ranks, replicas, arguments, files):
    if replicas:
        if arguments[0] == TRANSLATION[0]:
            pytest.importorskip(
                "jupyterlab_language_pack_fr_FR", reason="the corpus is not installed (extra `examples`)"
            )
        written_plan(arguments[0], replicas, tmp_path / "plan.json")
        arguments = (*arguments, "--config_path", str(tmp_path / "plan.json"))
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    plain.mkdir()
    killed.mkdir()
    expected = Job(plain, num_ranks, arguments=arguments, plain=True)
    assert expected.end()[0] == 0, expected.err.read_text()
    last = life(killed, num_ranks, ["random rank", "all ranks"][: 2 if replicas else 1], *arguments)
    assert "resumed at" in last.err.read_text()
    for name in files:
        assert (killed / "out" / name).read_bytes() == (plain / "out" / name).read_bytes()
    if not replicas:  # those of the pipelines say how long an epoch took
        assert last.out.read_text().splitlines()[-1] == expected.out.read_text().splitlines()[-1]


def written_plan(example: str, replicas: tuple[int, ...], path: Path) -> None:
    """Of the model that the test trains, with as many layers in each stage."""
    script = runpy.run_path(str(EXAMPLES / example / "train.py"))
    if example == "torch_pipeline_images":
        model, sample = script["ResNet"](), [torch.rand(4, 1, 16, 16)]
    else:
        model, sample = script["GNMT"](50, 4, 16), [torch.ones(4, 16, dtype=torch.int64)] * 2
    profile = detrain.pipeline.profile(model, sample, num_rounds=1)
    layers = [layer.name for layer in profile.layers if not layer.description.startswith("Input")]
    topology = of_levels((sum(replicas),), (1e9,))
    planfile.write(path, planfile.Planned(plan_of(layers, replicas), profile, topology))


@pytest.mark.full
def test_sigterm_to_one_rank_is_a_cut_of_all(tmp_path, expected):
    job = Job(tmp_path, 2, every="never")
    job.wait_until(lambda: "epoch 1" in job.out.read_text())
    job.ranks()[1].send_signal(signal.SIGTERM)
    assert job.end()[0] != 0
    assert len(job.cuts()) == 1
    last = completed(tmp_path, 2, arguments=("ddp",))
    assert last.finals() == expected(2)


@pytest.mark.full
def test_what_is_said_where_a_job_cannot_go_on(tmp_path, expected):
    job = Job(tmp_path, 2)
    job.wait_until(lambda: len(job.cuts()) > 1)
    for one in job.ranks():
        one.send_signal(signal.SIGSTOP)  # else it may end before the second has been refused
    second = Job(tmp_path, 2)
    assert second.end()[0] != 0
    assert "is held by process" in second.err.read_text()
    kill(job, "all ranks", random.Random(0))
    job.end()
    other = Job(tmp_path, 3)
    assert other.end()[0] != 0
    assert "holds a job of 2 ranks, and these are 3" in other.err.read_text()
    latest = max(job.directory.glob("cuts/*.json"), key=lambda path: path.stat().st_mtime_ns)
    cut = job.directory / "rank_1" / latest.stem
    damaged = bytearray(cut.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    cut.write_bytes(damaged)
    last = Job(tmp_path, 2)
    assert last.end()[0] == 0, last.err.read_text()
    assert last.finals() == expected(2)
    assert f"rank 1: {latest.stem} is damaged" in last.err.read_text()
    again = Job(tmp_path, 2)
    assert again.end()[0] == 0
    assert again.err.read_text().count("came to its end at") == 1


@pytest.mark.full
def test_ranks_are_started_and_started_again_by_one_command(tmp_path, expected):
    words = [sys.executable, "-m", "detrain", "run", "--ranks", "2", "--restarts", "3", "--every", "8batches"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        supervisor = subprocess.Popen(
            [*words, str(PROGRAMS / "ddp.py")], cwd=tmp_path, env=environment(), stdout=out, stderr=err
        )
    until_s = time.monotonic() + 60
    while not list(tmp_path.glob(".detrain/*/cuts/*.json")):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    (launcher,) = psutil.Process(supervisor.pid).children()
    next(one for one in launcher.children() if one.environ().get("RANK") == "1").send_signal(signal.SIGKILL)
    assert supervisor.wait(timeout=120) == 0
    assert finals_in(tmp_path / "out") == expected(2)
    assert "starting them again (1 of 3)" in (tmp_path / "err").read_text()
    (directory,) = (tmp_path / ".detrain").iterdir()
    verify = [sys.executable, "-m", "detrain", "verify", str(directory)]
    done = subprocess.run(verify, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert "proved: the job of 2 ranks was repeated to its end" in done.stdout
    assert done.returncode == 0
    ledger = directory / "rank_1" / "ledger"
    ledger.write_bytes(with_another_digest(ledger.read_bytes()))
    done = subprocess.run(verify, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert re.search(
        r"segment \d+: rank 1, after batch \d+ of the run .* is not what the run had there", done.stdout
    ), done.stdout
    assert done.returncode == 1


def with_another_digest(ledger: bytes) -> bytes:
    """A ledger whose last record of the generators has another digest, as if the rank had drawn something else."""
    position, found = 0, (0, 0)
    while position < len(ledger):
        kind, length = ledger[position : position + 1], int.from_bytes(ledger[position + 1 : position + 5], "little")
        if kind == b"B" and Batch.decode(ledger[position + 5 : position + 5 + length]).generators:
            found = position, length
        position += 9 + length
    begin, length = found
    old = Batch.decode(ledger[begin + 5 : begin + 5 + length])
    record = ledger[begin : begin + 5] + replace(old, generators=old.generators ^ 1).encode()
    return ledger[:begin] + record + zlib.crc32(record).to_bytes(4, "little") + ledger[begin + 9 + length :]


@pytest.mark.full
@pytest.mark.parametrize(
    ("scheduler", "words", "said"),
    [
        ("srun", [sys.executable, "-m", "detrain", "run"], "requeued after 9"),
        ("pods", [], "pod 0 restarted after"),  # each pod has a disk of its own
    ],
    ids=["srun", "pods"],
)
def test_what_a_scheduler_starts_again_goes_on(tmp_path, expected, scheduler, words, said):
    command = [sys.executable, str(PROGRAMS / f"{scheduler}.py"), "2", *words, "--every", "8batches"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [*command, str(PROGRAMS / "ddp.py")], cwd=tmp_path, env=environment(), stdout=out, stderr=err
        )
    until_s = time.monotonic() + 60
    while not list(tmp_path.rglob("cuts/*.json")):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    _rank_beneath(psutil.Process(process.pid), 0).kill()
    assert process.wait(timeout=120) == 0
    assert finals_in(tmp_path / "out") == expected(2)
    assert (tmp_path / "err").read_text().count(said) == 1
    assert "resumed at" in (tmp_path / "err").read_text()


def _rank_beneath(process: psutil.Process, rank: int) -> psutil.Process:
    for one in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            variables = one.environ()
            if str(rank) in (variables.get("RANK"), variables.get("SLURM_PROCID")):
                return one
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.soak
@pytest.mark.parametrize("what", ["random rank", "all ranks", "launcher", "between phases"])
@pytest.mark.parametrize(
    ("num_ranks", "arguments", "seed"),
    [
        *((3, ("ddp",), seed) for seed in range(2)),
        (3, ("ddp", "--shard"), 0),
        (2, ("parallel", "tensor"), 0),
        (2, ("libraries", "transformers"), 0),
        (2, ("libraries", "accelerate"), 0),
        (2, ("libraries", "lightning"), 0),
        (3, ("pipelined", "recurrent", "1-1-1", "1f1b", "4"), 0),
        (3, ("pipelined", "gpt", "2-1", "1f1b-async", "1"), 0),
        (3, ("pipelined", "dense", "1-2", "2bw", "4"), 0),
    ],
    ids=str,
)
def test_five_kills_of_each_kind(tmp_path, expected, num_ranks, arguments, seed, what):
    if arguments[0] == "libraries":
        pytest.importorskip(arguments[1])
    job = life(tmp_path, num_ranks, [what] * 5, *arguments, seed=seed)
    assert job.finals() == expected(num_ranks, *arguments)
