"""The two rounds of the tracer, each in its own process; their results become the run directory's inst.info."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detrain.errors import UsageError
from detrain.launch import environment
from detrain.launch.request import Request
from detrain.loops import instfile
from detrain.messages import say
from detrain.store.directory import RunDirectory
from detrain.tracer import inference

#: As much of a failed script's standard error is shown.
_TAIL_BYTES = 20_000


class Rounds:
    """Traces one script into one run directory."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._directory = RunDirectory(Path(os.path.abspath(request.ckpt_dir)))
        self._folder = Path(os.path.abspath(request.script) if request.script else request.module).parent
        self._has_second = False

    def trace(self, varied: Sequence[str] | None, diff_size: int | None) -> int:
        """Round one; then round two if `varied` gives its arguments, or if only a difference in size was given.

        Returns the exit status: the script's own if it fails, else 1 if no nest or no loader was found where one was asked for.
        """
        try:
            self._directory.lock()
        except OSError as error:
            raise UsageError(f"the run directory {self._directory.path} cannot be written: {error}") from None
        self._has_second = varied is not None
        if varied is None and diff_size is not None:
            return self._second(self._request.arguments, diff_size)
        status = self._first()
        if status == 0 and varied is not None:
            status = self._second(varied, diff_size)
        return status

    def _first(self) -> int:
        status = self._run(1, self._request.arguments)
        if status != 0:
            return status
        report = self._read(1)
        if not report["nests"]:
            say(f"error: {_what_was_seen(report)}")
            return 1
        verdict = inference.from_one_round(report["candidates"])
        self._write(report, verdict.loaders)
        if len(report["nests"]) > 1:
            say(
                f"{len(report['nests'])} training loops are candidates, and all are in inst.info: {self._info().describe()}. To keep one, "
                f"take the others out of `nests`, with `complete` set to True, in {self._directory.path / 'inst.info'}"
            )
        else:
            say(
                f"training loop found: {self._info().describe()}; seen in {report['batches']} batches, {report['seconds']:.1f} s"
            )
        if self._has_second:
            return 0
        self._say_loaders(verdict)
        if not verdict.loaders:
            say(f"data loader not found: {verdict.why_none}. A second round with other data finds it: --vary")
        return 0

    def _second(self, arguments: Sequence[str], diff_size: int | None) -> int:
        if not self._report_path(1).exists():
            raise UsageError(
                f"{self._directory.path} has no result of round one; first trace the script without --diff-size (DIFF_SIZE), or with --vary"
            )
        status = self._run(2, arguments)
        if status != 0:
            return status
        first, second = self._read(1), self._read(2)
        if not second["nests"]:
            say(f"error: in round two {_what_was_seen(second)}")
            return 1
        if _lines(second) != _lines(first):
            say(
                "error: round two has found another training loop than round one; the two must differ in their data only"
            )
            return 1
        if first["sources"] != second["sources"]:
            raise UsageError("the source has changed between round one and round two; trace round one again")
        verdict = inference.from_two_rounds(first, second, diff_size)
        if not verdict.loaders:
            say(f"error: no data loader found: {verdict.why_none}")
            return 1
        self._write(first, verdict.loaders)
        self._say_loaders(verdict)
        return 0

    def _say_loaders(self, verdict: inference.Verdict) -> None:
        for one in verdict.loaders:
            keeps = "is in checkpoints" if one["is_capturable"] else "cannot be captured: its batches are replayed"
            if not one["is_capturable"] and "." not in one["next"][1]:
                keeps = "cannot be captured, and a function is not replayed: a resume will be refused"
            place = f"{os.path.basename(one['file_name'])}:{one['line_no']}"
            say(f"data loader: {one['full_name']}, asked by {one['next'][1]} at {place}; its state {keeps}")

    # --- processes ---------------------------------------------------------------------------------------------------------

    def _run(self, number: int, arguments: Sequence[str]) -> int:
        """One round; its output goes to a log, but for the traceback of a script that fails."""
        report = self._report_path(number)
        report.unlink(missing_ok=True)
        log = self._directory.path / f"trace-{number}.log"
        words, variables = environment.prepare(replace(self._request, arguments=list(arguments), report=str(report)))
        with log.open("wb") as out, log.with_suffix(".err").open("wb") as err:
            try:
                status = subprocess.call(words, env=variables, stdout=out, stderr=err)
            except KeyboardInterrupt:
                status = 130
        if status == 0 and report.exists():
            return 0
        with log.with_suffix(".err").open("rb") as errors:
            errors.seek(max(errors.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            shutil.copyfileobj(errors, sys.stderr.buffer)
        sys.stderr.flush()
        say(
            f"error: the script failed in round {number}, before its training loop was known (status {status}); its output is in {log}"
        )
        return 128 - status if status < 0 else status or 1

    def _report_path(self, number: int) -> Path:
        return self._directory.path / f"trace-{number}.json"

    def _read(self, number: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._report_path(number).read_text(encoding="utf-8"))
        return document

    # --- inst.info ---------------------------------------------------------------------------------------------------------

    def _info(self) -> instfile.InstInfo:
        return instfile.read(self._directory.path / "inst.info", self._folder)

    def _write(self, report: Mapping[str, Any], loaders: Sequence[Mapping[str, Any]]) -> None:
        nests = [[instfile.NestLoop(**loop) for loop in nest] for nest in report["nests"]]
        files = {loop.file_name for nest in nests for loop in nest}
        info = instfile.InstInfo(nests, sources=dict(report["sources"]))
        for name in files - info.sources.keys():
            info.sources[name] = instfile.digest_of(name)
        info.extra = instfile.loader_keys(loaders, report["update"], self._folder)
        instfile.write(self._directory.path / "inst.info", info, self._folder)


def _lines(report: Mapping[str, Any]) -> list[list[tuple[str, int]]]:
    return [[(loop["file_name"], loop["line_no"]) for loop in nest] for nest in report["nests"]]


def _what_was_seen(report: Mapping[str, Any]) -> str:
    loops = ", ".join(
        f"{os.path.basename(name)}:{line} ({count} iterations)" for name, line, count in report["loops_seen"]
    )
    return (
        f"no weight update was seen inside a loop: the script was watched for {report['seconds']:.1f} s, to its end. Seen were "
        f"{report['gradients_seen']} computations of gradients, {report['updates_seen']} updates, and these loops: {loops or 'none'}"
    )
