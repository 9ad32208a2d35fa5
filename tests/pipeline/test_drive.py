"""`detrain pipeline drive`: what is started where, what is refused, and ranks that are killed and go on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("yaml", reason='drivers are YAML: pip install "detrain-run[plan]"')

from detrain.adapters import launchers
from detrain.cli import main
from detrain.errors import GraphError, UsageError
from detrain.launch import driving, rank_processes
from detrain.launch.driving import Job, RankCommand, launcher_words
from detrain.launch.rank_processes import RankProcesses
from detrain.pipeline import deployment, driver, graphtext, planfile
from detrain.pipeline.driver import Driver, script_options
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.topologyfile import of_levels
from tests.resume.harness import environment

from .graphs import chain, layer

PROFILE = chain(
    layer("n1", 0, 0, 1e3, 0, "Input0"), layer("n2", 1, 2, 1e6, 4e6, "Linear"), layer("n3", 1, 2, 1e6, 0, "ReLU"),
    layer("n4", 2, 4, 1e6, 8e6, "Linear"),
)  # fmt: skip
STAGES = tuple(Stage(at, at + 1, (f"n{at + 2}",), 1, (at,)) for at in range(3))
CONFIG = """\
log_directory: logs
module: models.small
data_dir: /data
model_type: image_classification
distributed_backend: gloo
config_file: plan.json
machines: ['localhost:0', 'localhost:1', 'localhost:2']
batch_size: 12
learning_rate: 0.01
"""
REMOTE = CONFIG.replace("'localhost:1', 'localhost:2'", "'far:0', 'far:3'")
OPTIONS = ["--data_dir", "/data", "--module", "models.small", "--distributed_backend", "gloo", "-b", "12", "--lr", "0.01",
           "--config_path", "plan.json"]  # fmt: skip
#: A stand-in for ssh: it drops its options and the host, which it writes down.
SSH = """#!/bin/sh
while :; do case $1 in -o) shift 2;; -*) shift;; *) break;; esac; done
echo "$1" >> hosts.txt
shift
exec sh -c "$*"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a configuration, its plan, and a script."""
    monkeypatch.chdir(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    planned = planfile.Planned(Plan("by hand", STAGES, 1, 0.0, 1.0, 1.0), PROFILE, of_levels((3,)))
    planfile.write(tmp_path / "plan.json", planned)
    graphtext.write(tmp_path / "graph.txt", PROFILE)
    (tmp_path / "drive.yml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("")
    return tmp_path


@pytest.fixture
def command(folder, monkeypatch, capfd):
    """Exit status, the ranks' commands if any would have been started, and what was said."""

    def run(*words):
        started = []
        monkeypatch.setattr(RankProcesses, "run", lambda self: started.extend(self._commands) or 0)
        monkeypatch.setattr(sys, "argv", ["detrain", "pipeline", "drive", *words])
        status = main()
        return status, started, capfd.readouterr().err

    return run


# --- what each rank is told --------------------------------------------------------------------------------------------------


def job_of(*machines, environment=None, **other):
    return Job(
        machines, ["-m", "detrain", "run", "train.py"], "/a folder", "r1", 1234, "python-here", "python-there", environment or {}, **other
    )  # fmt: skip


def test_ranks_of_one_host_meet_at_its_own_address_and_see_their_gpus(monkeypatch):
    monkeypatch.setattr(launchers, "NOT_INHERITED", ("GONE",))
    found = job_of(
        ("localhost", 3), ("127.0.0.1", 1), ("localhost", 0), environment={"HOME": "/h", "GONE": "1"}
    ).commands()
    assert [list(one.words) for one in found] == [["python-here", "-m", "detrain", "run", "train.py"]] * 3
    assert [one.place for one in found] == ["localhost:3", "127.0.0.1:1", "localhost:0"]
    told = [
        {name: one.environment[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")}
        for one in found
    ]  # fmt: skip
    assert told == [
        {"RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "CUDA_VISIBLE_DEVICES": "3,0"},
        {"RANK": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"},
        {"RANK": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "CUDA_VISIBLE_DEVICES": "3,0"},
    ]
    alike = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1234",
        "WORLD_SIZE": "3",
        "TORCHELASTIC_RUN_ID": "r1",
        "HOME": "/h",
    }
    assert all(one.environment.items() >= alike.items() and "GONE" not in one.environment for one in found)


@pytest.mark.parametrize(
    ("devices", "hidden_by", "seen"),
    [((3, 0), None, "3,0"), ((1, 0), "4,GPU-5", "GPU-5,4"), ((0,), "", ""), ((7,), "-1", "-1")],
)
def test_gpus_are_numbered_as_the_environment_shows_them(devices, hidden_by, seen):
    assert launchers.visible_devices(devices, hidden_by) == {"CUDA_VISIBLE_DEVICES": seen}


def test_a_gpu_that_the_environment_hides_is_refused():
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES is 4,5, which has no device 2"):
        launchers.visible_devices((0, 2), "4,5")


def test_another_host_is_reached_by_ssh_with_everything_quoted(monkeypatch):
    monkeypatch.setattr(driving.shutil, "which", lambda _: "/bin/ssh")
    environment = {
        "PYTHONPATH": "/x y",
        "NCCL_DEBUG": "INFO",
        "SECRET": "s",
        "OMP_NUM_THREADS": "2",
        "DETRAIN_REQUEST": "{}",
    }
    job = job_of(("me@far", 1), ("localhost", 0), environment=environment, ssh=("ssh", "-p", "22"))
    words = list(job.commands()[0].words)
    assert words[:3] == ["ssh", "-p", "22"]
    assert "BatchMode=yes" in words
    assert words[-3:-1] == ["-tt", "me@far"]
    assert shlex.split(words[-1])[:3] == ["exec", "sh", "-c"]
    line = shlex.split(words[-1])[3]
    assert line.startswith(
        "echo detrain-rank-process r1 $$ && cd '/a folder' && exec env 'PYTHONPATH=/x y' NCCL_DEBUG=INFO OMP_NUM_THREADS=2 RANK=0 "
    )
    assert line.endswith(" CUDA_VISIBLE_DEVICES=1 PYTHONUNBUFFERED=1 TERM=dumb python-there -m detrain run train.py")
    assert " MASTER_ADDR=far " in line
    assert "SECRET" not in line
    assert job.commands()[0].kill_words(77, 15)[-3:] == ["-n", "me@far", "kill -15 77"]
    assert job.commands()[1].environment["MASTER_ADDR"] == "far"


def test_where_rank_0_is_here_others_meet_it_by_this_hosts_name(monkeypatch):
    monkeypatch.setattr(driving.shutil, "which", lambda _: "/bin/ssh")
    monkeypatch.setattr(driving.socket, "gethostname", lambda: "here.net")
    assert job_of(("localhost", 0), ("far", 0)).address() == "here.net"
    assert job_of(("here", 0), ("far", 0)).address() == "here"
    assert job_of(("here", 0), ("localhost", 0)).address() == "127.0.0.1"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "here", "here.net"])
def test_this_host_has_several_names(host, monkeypatch):
    monkeypatch.setattr(driving.socket, "gethostname", lambda: "here.net")
    assert driving.is_local(host)


@pytest.mark.parametrize("host", ["far", "192.0.2.1", "me@localhost", "here.org", "127.example.org"])
def test_other_hosts_are_not_this_one(host, monkeypatch):
    monkeypatch.setattr(driving.socket, "gethostname", lambda: "here.net")
    assert not driving.is_local(host)


def test_a_rank_in_a_container_gets_folder_and_variables_inside_of_it(monkeypatch):
    monkeypatch.setattr(driving.shutil, "which", lambda _: "/bin/any")
    launcher = launcher_words("docker run {mounts} {container}", "image:1", ["/data", "/a:/b"])
    assert launcher == ["docker", "run", "-v", "/data:/data", "-v", "/a:/b", "image:1"]
    here, there = job_of(("localhost", 0), ("far", 0), launcher=launcher).commands()
    assert list(here.words[:-1]) == [*launcher, "sh", "-c"]
    assert here.words[-1].startswith("cd '/a folder' && exec env RANK=0 ")
    line = shlex.split(there.words[-1])[3]
    assert line.startswith("echo detrain-rank-process r1 $$ && exec docker run ")
    assert shlex.split(line)[6:-1] == [*launcher, "sh", "-c"]


@pytest.mark.parametrize(
    ("launcher", "container", "mounts", "said"),
    [
        ("docker run {mounts}", "image", (), "has no {container}, and the container is image"),
        ("docker run {container}", "", (), "has {container}, and the configuration names none"),
        ("docker run {container}", "image", ("/a",), "has no {mounts} for --mount /a"),
        ("docker 'run", "image", (), "No closing quotation"),
    ],
)
def test_a_launcher_without_its_placeholders_is_refused(launcher, container, mounts, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        launcher_words(launcher, container, mounts)


def test_a_script_gets_pipedreams_options_in_its_drivers_order():
    options = {
        "macrobatch": True, "recompute": False, "epochs": 60, "weight_decay": 0.0, "verbose_frequency": 100, "learning_rate": 0.01,
        "module": "m", "container": "c", "compress_in_gpu": True, "print_frequency": 5, "batch_size": 64, "lr_warmup": True,
        "learning_rate_policy": "polynomial", "synthetic_data": True, "no_input_pipelining": True,
    }  # fmt: skip
    assert " ".join(script_options(Driver((("a", 0),), options), "p.json")) == (
        "--module m -b 64 --lr 0.01 --lr_policy polynomial --weight-decay 0.0 --epochs 60 --print-freq 5 --no_input_pipelining -v 100 "
        "--lr_warmup --synthetic_data --macrobatch --config_path p.json"
    )


def test_a_host_may_be_an_address_of_the_sixth_version(tmp_path):
    (tmp_path / "a.yml").write_text(CONFIG.replace("localhost:0", "::1:0").replace("localhost:1", "[fe80::2]:1"))
    found = driver.read(tmp_path / "a.yml")
    assert found.machines[:2] == (("::1", 0), ("fe80::2", 1))
    driver.write(tmp_path / "b.yml", found)
    assert driver.read(tmp_path / "b.yml") == found


@pytest.mark.parametrize("machine", ["-oProxyCommand=x:0", "a:b:0"])
def test_a_machine_that_is_no_host_is_refused(machine, tmp_path):
    (tmp_path / "a.yml").write_text(CONFIG.replace("localhost:0", machine))
    with pytest.raises(GraphError, match="not host:device"):
        driver.read(tmp_path / "a.yml")


# --- the command -------------------------------------------------------------------------------------------------------------


def test_each_rank_runs_the_script_under_detrain_with_the_users_arguments_last(command, folder):
    status, started, said = command(
        "--every", "5batches", "drive.yml", "--keep", "2", "train.py", "--lr", "3", "--resume"
    )
    assert status == 0
    words = [
        sys.executable,
        "-m",
        "detrain",
        "run",
        "--every",
        "5batches",
        "--keep",
        "2",
        "train.py",
        *OPTIONS,
        "--lr",
        "3",
        "--resume",
    ]
    assert [list(one.words) for one in started] == [words] * 3
    assert "rank 0 on localhost:0, rank 1 on localhost:1, rank 2 on localhost:2; logs in logs/drive_1" in said
    assert sorted(path.name for path in (folder / "logs/drive_1").iterdir()) == [
        "commands.txt",
        "drive.yml",
        "plan.json",
    ]


def test_each_start_has_logs_of_its_own_and_the_same_command(command, folder):
    first, second = (command("drive.yml", "train.py")[1] for _ in range(2))
    assert [one.words for one in first] == [one.words for one in second]
    assert sorted(path.name for path in (folder / "logs").iterdir()) == ["drive_1", "drive_2"]
    assert first[0].environment["TORCHELASTIC_RUN_ID"] != second[0].environment["TORCHELASTIC_RUN_ID"]


def test_a_conf_becomes_a_plan_that_stays_where_it_is(command, folder):
    deployment.write(folder / "conf.json", deployment.of_plan(Plan("by hand", STAGES, 1, 0.0, 1.0, 1.0)))
    (folder / "conf.yml").write_text(CONFIG.replace("plan.json", "conf.json"))
    status, _, said = command("conf.yml", "train.py")
    assert (status, "give --profile FILE" in said) == (2, True)
    for _ in range(2):
        status, started, said = command("--profile", "graph.txt", "conf.yml", "train.py")
        assert (status, list(started[0].words[-2:])) == (0, ["--config_path", "logs/conf.plan.json"])
    assert planfile.read(folder / "logs/conf.plan.json").plan.stages == STAGES


def test_machines_beyond_the_plan_have_nothing_to_do(command, folder):
    (folder / "drive.yml").write_text(CONFIG.replace("'localhost:2'", "'localhost:2', 'far:1'"))
    status, started, said = command("drive.yml", "train.py")
    assert (status, len(started)) == (0, 3)
    assert "the plan has 3 ranks, so there is nothing to do for far:1" in said


@pytest.mark.parametrize(
    "place", ["plan.json", "image_classification/plan.json", "configs/plan.json", "configs/../plan.json"]
)
def test_a_config_file_is_found_as_pipedream_finds_it_and_beside_the_configuration(place, command, folder):
    (folder / "configs").mkdir()
    (folder / "image_classification").mkdir()
    (folder / "drive.yml").rename(folder / "configs/drive.yml")
    (folder / "plan.json").rename(folder / place)
    status, started, _ = command("configs/drive.yml", "train.py")
    assert status == 0
    assert (folder / started[0].words[-1]).samefile(folder / place)


@pytest.mark.parametrize("name", ["job.json", "run.json"])
def test_a_resume_is_the_run_directory_of_an_earlier_one(name, command, folder):
    (folder / "before").mkdir()
    (folder / "before" / name).write_text("{}")
    status, started, _ = command("--resume", "before", "drive.yml", "train.py")
    assert (status, list(started[0].words[4:6])) == (0, ["--ckpt-dir", "before"])


@pytest.mark.parametrize(
    ("words", "old", "new", "said"),
    [
        ((), "batch_size", "batchsize", "drive.yml: 'batchsize' is none of machines, log_directory, "),
        ((), CONFIG[CONFIG.index("['local") : CONFIG.index("]") + 1], "[]", "drive.yml: machines is empty"),
        ((), ", 'localhost:2'", "", "drive.yml has 2 machines, and the plan plan.json has 3 ranks"),
        ((), "plan.json", "gone.json", "there is no config_file gone.json, neither from the working directory nor "),
        ((), "plan.json", "graph.txt", "graph.txt is a profile, not a plan"),
        ((), "config_file: plan.json\n", "", "drive.yml names no config_file: give --plan PLAN"),
        (("--plan", "gone.json"), "", "", "File 'gone.json' does not exist"),
        (("--ssh", "no-such-ssh"), "localhost:1", "far:1", "no-such-ssh is not installed, and far is another host"),
        ((), "batch_size", "container: image:1\nbatch_size", "or --no-container to run without it"),
        (("--launcher", "no-such {container}"), "batch_size", "container: a\nbatch_size", "no-such, which the launcher begins with, is"),
        (("--mount", "/a"), "", "", "--mount is for a launcher with {mounts}"),
        (("--resume", "gone"), "", "", "--resume gone: there is no run in it"),
        (("--resume", "gone", "--fresh"), "", "", "--resume and --fresh do not go together"),
        (("--every", "often"), "", "", "often"),
    ],
)  # fmt: skip
def test_what_cannot_be_driven_is_said_in_a_sentence(words, old, new, said, command, folder):
    assert old in CONFIG
    (folder / "drive.yml").write_text(CONFIG.replace(old, new, 1) if old else CONFIG)
    status, started, err = command(*words, "drive.yml", "train.py")
    assert (status, started) == (2, [])
    assert said in err
    assert not (folder / "logs").exists()


def test_a_script_that_is_not_there_is_said(command):
    assert command("drive.yml", "gone.py")[::2] == (
        2,
        "detrain: error: Invalid value for 'SCRIPT': File 'gone.py' does not exist.\n",
    )


@pytest.mark.parametrize(
    ("words", "more", "begin"),
    [
        (("--no-container",), "container: image:1\nlauncher: env {container}\n", [sys.executable, "-m"]),
        ((), "container: image:1\nlauncher: env X={container}\n", ["env", "X=image:1", "sh", "-c"]),
        (("--launcher", "env A={container} {mounts}", "--mount", "/a:/b"), "container: b\nlauncher: none\n", ["env", "A=b", "-v", "/a:/b"]),
    ],
)  # fmt: skip
def test_a_container_is_started_by_the_launcher(words, more, begin, command, folder):
    (folder / "drive.yml").write_text(CONFIG + more)
    status, started, _ = command(*words, "drive.yml", "train.py")
    assert status == 0
    assert list(started[0].words[: len(begin)]) == begin


# --- processes ---------------------------------------------------------------------------------------------------------------


def test_when_a_rank_is_killed_the_others_end_and_it_is_named(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(rank_processes, "_OWN_END_S", 0.1)
    monkeypatch.setattr(rank_processes, "GRACE_S", 0.3)
    scripts = (
        "trap '' TERM; echo deaf; sleep 30; sleep 30",
        "echo first; printf last; kill -9 $$",
        "trap 'echo told; exit 7' TERM; sleep 0.05; while :; do sleep 0.05; done",
    )
    commands = [RankCommand(rank, f"h:{rank}", ("sh", "-c", script), os.environ) for rank, script in enumerate(scripts)]
    began_s = time.monotonic()
    assert RankProcesses(commands, tmp_path).run() == 137
    assert time.monotonic() - began_s < 10
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["rank 0: deaf", "rank 1: first", "rank 1: last", "rank 2: told"]
    assert err == (
        "detrain: error: rank 1 on h:1 was killed by SIGKILL, and the other ranks were ended; the same command resumes. "
        f"The end of {tmp_path}/rank_1.log:\n    first\n    last\n"
    )
    assert (tmp_path / "rank_2.log").read_text() == "told\n"


def test_a_signal_to_the_driver_comes_to_ranks_on_other_hosts(folder):
    (folder / "drive.yml").write_text(REMOTE)
    (folder / "ssh").write_text(SSH)
    # In the place of an interpreter.
    (folder / "python").write_text(
        "#!/bin/sh\ntrap 'echo told; exit 7' TERM\necho $RANK of $WORLD_SIZE: $*\nwhile :; do sleep 0.1; done\n"
    )
    for name in ("ssh", "python"):
        (folder / name).chmod(0o755)
    # The ranks that are here, too, so that none loads anything.
    words = [sys.executable, "-m", "detrain", "pipeline", "drive", "--ssh", str(folder / "ssh"), "--python", str(folder / "python"),
             "--launcher", "env", "drive.yml", "train.py", "--more", "a b"]  # fmt: skip
    driving = subprocess.Popen(
        words, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell lets what it starts in the background ignore Ctrl-C
    )  # fmt: skip
    with driving:
        lines = {driving.stdout.readline().rstrip("\n") for _ in range(3)}
        driving.send_signal(signal.SIGINT)
        try:
            out, err = driving.communicate(timeout=60)
        finally:
            driving.kill()
    line = " ".join(["-m", "detrain", "run", "train.py", *OPTIONS, "--more", "a b"])
    assert lines == {f"rank {rank}: {rank} of 3: {line}" for rank in range(3)}
    assert sorted(out.splitlines()) == [f"rank {rank}: told" for rank in range(3)]
    assert driving.returncode == 7
    assert "detrain: SIGINT: 3 ranks are told to write a checkpoint and to end\n" in err
    assert (folder / "hosts.txt").read_text().splitlines() == ["far"] * 4  # two ranks, and a signal to each
    assert (folder / "logs/drive_1/rank_1.log").read_text() == f"1 of 3: {line}\ntold\n"


SCRIPT = """
import argparse, sys
import torch
import torch.distributed as dist
import detrain.pipeline
from tests.pipeline.pipelined import batches, digest, loss_of, made
parser = argparse.ArgumentParser()
parser.add_argument("-b", type=int)
parser.add_argument("--config_path")
args, _ = parser.parse_known_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
model, optimizer = made("gpt", 0.1)
pipe = detrain.pipeline.Pipeline(model, args.config_path, optimizer, loss_fn=loss_of, num_micro_batches=3)
for epoch in range(6):
    for x, y in batches("gpt", 24, args.b):
        loss = pipe.step(x, target=y)
    print(f"epoch {epoch}", flush=True)
print("digest", digest(pipe.gather()), loss.item(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.full
def test_a_driven_job_that_loses_a_rank_has_the_bits_of_an_uninterrupted_one(folder):
    import detrain.pipeline

    from .pipelined import batches, made, plan_of

    model, _ = made("gpt", 0.1)
    profile = detrain.pipeline.profile(model, [next(batches("gpt"))[0]], num_rounds=1)
    layers = [layer.name for layer in profile.layers if not layer.description.startswith("Input")]
    planfile.write(folder / "plan.json", planfile.Planned(plan_of(layers, (1, 1, 1)), profile, of_levels((3,), (1e9,))))
    (folder / "train.py").write_text(SCRIPT)
    own = environment()
    own["PYTHONPATH"] = os.pathsep.join([own["PYTHONPATH"], str(folder)])

    def drive(*words, kills=False):
        command = [
            sys.executable,
            "-m",
            "detrain",
            "pipeline",
            "drive",
            *words,
            "--every",
            "10batches",
            "drive.yml",
            "train.py",
        ]
        process = subprocess.Popen(
            command, cwd=folder, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if kills:
            while not process.stdout.readline().startswith("rank 1: epoch 2"):
                assert process.poll() is None
            children = subprocess.run(
                ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True, check=True
            )
            os.kill(int(children.stdout.split()[1]), signal.SIGKILL)
        out, err = process.communicate(timeout=200)
        return process.returncode, set(re.findall(r"digest .*", out)), out, err

    expected = drive("--ckpt-dir", "whole")
    assert (expected[0], len(expected[1])) == (0, 1), expected
    killed = drive(kills=True)
    assert killed[0] == 137
    assert "was killed by SIGKILL, and the other ranks were ended; the same command resumes" in killed[3]
    again = drive()
    assert again[:2] == expected[:2]
    assert "resumed at epoch 2" in again[2]
