"""Numbers with units, as they are written on command lines and in files: 4GiB, 25GB/s, 10Gbit/s."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: In bytes. Sizes are written in capitals or without.
SIZES = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
#: In bytes a second. Here capitals count: `Gb/s` would be bits to some and bytes to others.
RATES = {
    "": 1.0, "B/s": 1.0, "kB/s": 1e3, "KB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12,
    "KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30, "TiB/s": 2.0**40,
    "bit/s": 0.125, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6, "Tbit/s": 125e9,
}  # fmt: skip


def parse_bytes(text: str) -> tuple[float, str]:
    """Bytes, and the unit that was written, in capitals. Raises `ValueError` for what is no number of zero or more."""
    amount, unit = _parse(text)
    return amount * _known(unit.upper(), SIZES), unit.upper()


def parse_rate(text: str) -> float:
    """Bytes a second. Raises `ValueError`, as for bytes."""
    amount, unit = _parse(text)
    return amount * _known(unit, RATES)


def _parse(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)\s*", text, re.ASCII)
    amount = float(match[1]) if match else float("inf")
    if match is None or amount == float("inf"):
        raise ValueError(f"{text} is no number with a unit")
    return amount, match[2]


def _known(unit: str, units: Mapping[str, float]) -> float:
    if unit not in units:
        raise ValueError(f"there is no unit {unit}: it is one of {', '.join(filter(None, units))}")
    return units[unit]


def size_text(num_bytes: int) -> str:
    """Bytes as a person writes them, in powers of 1024."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
