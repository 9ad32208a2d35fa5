"""What on this machine, in a script and in its last run threatens determinism; worst first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detrain.doctor import script, surroundings
from detrain.doctor.finding import Finding

__all__ = ["Finding", "as_json", "examine", "format_findings"]


def examine(path: Path | None, directory: Path | None) -> list[Finding]:
    """Findings about the machine, about the script and the modules beside it (if given), and about its run (if there is one)."""
    found = surroundings.of_machine()
    if path is not None:
        found += script.of_script(path)
    if directory is not None and directory.is_dir():
        found += surroundings.of_run(directory)
    return sorted(found, key=lambda one: one.rank)


def format_findings(found: list[Finding]) -> str:
    """For a person."""
    if not found:
        return "nothing found that threatens determinism"
    lines: list[str] = []
    for one in found:
        lines.append(f"{one.level}: {one.where}: {one.what}")
        lines.append(f"    {one.advice}")
    return "\n".join(lines)


def as_json(found: list[Finding]) -> list[dict[str, Any]]:
    """For a program."""
    return [vars(one) for one in found]
