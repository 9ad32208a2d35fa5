"""`detrain pipeline drive`: PipeDream's driver, for a plan of ours or a conf of PipeDream's."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

import click

from detrain.cli.files import FILE, needs_plan, read_file, write_file
from detrain.errors import UsageError
from detrain.messages import say

if TYPE_CHECKING:
    from detrain.pipeline.driver import Driver
    from detrain.pipeline.planfile import Planned


class DriveOptions(TypedDict):
    """Options by their names here; None where one is not given."""

    plan: Path | None
    profile: Path | None
    modules: str
    resume: str | None
    ckpt_dir: str | None
    every: str | None
    keep: int | None
    seed: int | None
    fresh: bool
    ssh: str
    python: str | None
    port: int | None
    launcher: str | None
    no_container: bool
    mount: tuple[str, ...]
    quiet: bool


class _DriveCommand(click.Command):
    """Takes options before and behind CONFIG; those behind SCRIPT are the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With CONFIG moved to where SCRIPT is."""
        takes_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        position, config = 0, None
        while position < len(args):
            word = args[position]
            if not word.startswith("-") or word in ("-", "--"):
                if config is not None:
                    break
                config = args.pop(position)
            else:
                position += 2 if word in takes_value else 1
        if config is not None:
            args.insert(min(position, len(args)), config)
        return super().parse_args(ctx, args)


@click.command(cls=_DriveCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--plan", type=FILE, metavar="PLAN", help="Train by this plan. [default: the configuration's config_file]"
)
@click.option(
    "--profile", type=FILE, metavar="FILE", help="The profile to which a conf of PipeDream belongs, as for convert."
)
@click.option(
    "--modules", default="", metavar="DIR|LAYERS", help="Which layers are in which module of the conf, as for convert."
)
@click.option("--resume", metavar="PATH", help="Go on with the run in this directory, which has to be there.")
@click.option("--ckpt-dir", metavar="DIR", help="Run directory, as for run.")
@click.option("--every", metavar="WHEN", help="When to write a checkpoint, as for run.")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Keep the newest N checkpoints, as for run.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Base seed, as for run.")
@click.option("--fresh", is_flag=True, help="Start over. The old run directory is moved aside, not deleted.")
@click.option(
    "--ssh", default="ssh", show_default=True, metavar="COMMAND", help="Reaches other hosts, as in 'ssh -p 2222'."
)
@click.option(
    "--python", metavar="PATH",
    help="The interpreter on other hosts and in containers. [default: this one's path; python in containers]",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(1, 65519), metavar="N",
    help="Where rank 0 listens. [default: a free one; 29500 on another host]",
)  # fmt: skip
@click.option(
    "--launcher", metavar="COMMAND",
    help="Starts each rank, as in 'docker run --rm --init --network=host {mounts} {container}'. [default: the configuration's launcher]",
)  # fmt: skip
@click.option("--no-container", is_flag=True, help="Start the ranks without the configuration's container.")
@click.option("--mount", multiple=True, metavar="FROM[:TO]", help="A folder for {mounts}; may be given several times.")
@click.option("--quiet", is_flag=True, help="Write the ranks' output to their logs only.")
@click.argument("config", type=FILE)
@click.argument("script", type=FILE)
@click.argument("arguments", nargs=-1, metavar="[ARGS]...", type=click.UNPROCESSED)
@needs_plan
def drive(config: Path, script: Path, arguments: tuple[str, ...], **options: Unpack[DriveOptions]) -> Callable[[], int]:
    """Start SCRIPT on the machines of PipeDream's driver YAML, a rank of a plan on each.

    Each rank runs under `detrain run`; the same command, given again, goes on where the ranks were killed. The script gets the
    configuration's options under PipeDream's names, then ARGS.
    """
    from detrain.launch.driving import Job
    from detrain.launch.rank_processes import RankProcesses
    from detrain.pipeline import driver

    chosen = read_file(config, driver.read)
    _check_run(options)
    launcher = _launcher(chosen, options)
    plan = _plan(chosen, config, options)
    machines = _machines(chosen, config, plan)
    words = ["-m", "detrain", "run", *_run_options(options), str(script)]
    words += [*driver.script_options(chosen, str(plan.path)), *arguments]
    job = Job(
        machines=machines, words=words, folder=os.getcwd(), run_id=os.urandom(8).hex(), port=_port(machines[0][0], options["port"]),
        python=sys.executable, other_python=options["python"] or ("python" if launcher else sys.executable),
        environment=dict(os.environ), ssh=_words(options["ssh"]), launcher=launcher,
    )  # fmt: skip
    commands = job.commands()

    def start() -> int:
        folder = _log_folder(_logs(chosen), config)
        write_file(folder / config.name, lambda path: shutil.copyfile(config, path))
        _write_plan(plan, folder)
        write_file(
            folder / "commands.txt", lambda path: path.write_text("".join(f"{each.text()}\n" for each in commands))
        )
        places = ", ".join(f"rank {each.rank} on {each.place}" for each in commands)
        say(f"{places}; logs in {folder}")
        return RankProcesses(commands, folder, is_quiet=options["quiet"]).run()

    return start


class _PlanFile(NamedTuple):
    """The plan that the ranks read, by the same path in each attempt: it is among the script's arguments."""

    path: Path
    planned: Planned
    #: True where it is made of a conf, and not the user's own file.
    is_made: bool


def _plan(chosen: Driver, config: Path, options: DriveOptions) -> _PlanFile:
    """Raises `UsageError` or `GraphError` where there is none."""
    from detrain.pipeline import conversion
    from detrain.pipeline.planfile import Planned

    source = options["plan"] or _config_file(chosen, config)
    profile, modules = options["profile"], options["modules"]
    is_made = read_file(source, conversion.is_conf)
    if is_made and profile is None:
        raise UsageError(
            f"{source} is a conf of PipeDream, which names no layers: give --profile FILE, the graph.txt that it belongs to, or --plan PLAN"
        )
    planned = read_file(source, lambda path: conversion.read(path, profile, modules)).content
    if not isinstance(planned, Planned):
        raise UsageError(f"{source} is a profile, not a plan; detrain pipeline plan makes one of it")
    return _PlanFile(_logs(chosen) / f"{config.stem}.plan.json" if is_made else source, planned, is_made)


def _config_file(chosen: Driver, config: Path) -> Path:
    from detrain.pipeline import driver

    named = str(chosen.options.get("config_file", ""))
    if not named:
        raise UsageError(f"{config} names no config_file: give --plan PLAN, or add config_file")
    found = driver.find(named, config, str(chosen.options["model_type"]))
    if found is None:
        raise UsageError(
            f"{config}: there is no config_file {named}, neither from the working directory nor from the configuration's folder; give "
            "another with --plan"
        )
    return found


def _write_plan(plan: _PlanFile, folder: Path) -> None:
    from detrain.pipeline import planfile

    write_file(folder / "plan.json", lambda path: planfile.write(path, plan.planned))
    if plan.is_made:
        # Ranks of an earlier start may still read it.
        part = plan.path.with_name(f".{plan.path.name}.{os.getpid()}")
        write_file(part, lambda path: planfile.write(path, plan.planned))
        write_file(plan.path, part.replace)


def _machines(chosen: Driver, config: Path, plan: _PlanFile) -> tuple[tuple[str, int], ...]:
    """Of each rank. Raises `UsageError` where some have none."""
    num_ranks = plan.planned.plan.num_workers
    if num_ranks > len(chosen.machines):
        raise UsageError(
            f"{config} has {len(chosen.machines)} machines, and the plan {plan.path} has {num_ranks} ranks"
        )
    if idle := chosen.machines[num_ranks:]:
        names = ", ".join(f"{host}:{device}" for host, device in idle)
        say(f"the plan has {num_ranks} ranks, so there is nothing to do for {names}")
    return chosen.machines[:num_ranks]


def _launcher(chosen: Driver, options: DriveOptions) -> list[str]:
    """The words before each rank's command. Raises `UsageError` for a container that nothing starts."""
    from detrain.launch.driving import launcher_words

    container = "" if options["no_container"] else str(chosen.options.get("container", ""))
    configured = "" if options["no_container"] else str(chosen.options.get("launcher", ""))
    launcher = options["launcher"] or configured
    if launcher:
        return launcher_words(launcher, container, options["mount"])
    if container:
        raise UsageError(
            f"the configuration names the container {container}, and not how to start it: give --launcher 'docker run --rm --init "
            "--network=host {mounts} {container}', or --no-container to run without it"
        )
    if options["mount"]:
        raise UsageError("--mount is for a launcher with {mounts}, and there is no launcher")
    return []


def _check_run(options: DriveOptions) -> None:
    """Raises `UsageError` for what does not go together, and where there is nothing to resume."""
    from detrain.session import policy
    from detrain.store.directory import JOB_RECORD

    resume = options["resume"]
    if options["every"]:
        policy.parse(options["every"])
    if resume is None:
        return
    if options["ckpt_dir"] or options["fresh"]:
        raise UsageError(f"--resume and --{'ckpt-dir' if options['ckpt_dir'] else 'fresh'} do not go together")
    if not any((Path(resume) / name).is_file() for name in (JOB_RECORD, "run.json")):
        raise UsageError(
            f"--resume {resume}: there is no run in it; it is the run directory that the killed job has named, as in .detrain/train"
        )


def _run_options(options: DriveOptions) -> list[str]:
    """Those of each rank's `detrain run`."""
    given = {
        "--ckpt-dir": options["resume"] or options["ckpt_dir"], "--every": options["every"], "--keep": options["keep"],
        "--seed": options["seed"],
    }  # fmt: skip
    words = ["--fresh"] if options["fresh"] else []
    return words + [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _port(first_host: str, port: int | None) -> int:
    from detrain.launch import driving

    return port or (driving.free_port() if driving.is_local(first_host) else driving.DEFAULT_PORT)


def _words(ssh: str) -> list[str]:
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise UsageError(f"--ssh {ssh}: {error}") from None
    if not words:
        raise UsageError("--ssh is empty")
    return words


def _logs(chosen: Driver) -> Path:
    return Path(str(chosen.options["log_directory"]))


def _log_folder(logs: Path, config: Path) -> Path:
    """A new folder for one start, numbered: `NAME_1`, `NAME_2`, … Raises `UsageError`."""
    write_file(logs, lambda path: path.mkdir(parents=True, exist_ok=True))
    number = 1
    while True:
        folder = logs / f"{config.stem}_{number}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(f"{folder} cannot be written: {error}") from None
