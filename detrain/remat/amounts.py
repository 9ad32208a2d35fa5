"""How much memory a training may have, as people write it."""

from __future__ import annotations

from detrain.errors import UsageError
from detrain.plans.units import parse_bytes

#: In place of a planner's name: the steps are taken as they come.
ONLINE = "online"
#: Nobody means less: a number alone that is smaller was meant as something else. Bytes.
_LEAST_BYTES = 1e6


def amount_of(text: str, name: str) -> tuple[int, float]:
    """Bytes and 0.0 for `6GiB`, `500MB`, `1000000`; 0 and a share of what the first iteration takes for `0.5`.

    `name`: what the text is given to, for the message. Raises `UsageError`.
    """
    try:
        amount, unit = parse_bytes(text)
    except ValueError:
        amount, unit = 0.0, ""
    if not unit and 0 < amount <= 1 and "." in text:
        return 0, amount
    if amount < _LEAST_BYTES:
        raise UsageError(
            f"{name} {text}: expected bytes (6GiB, 500MB, 1000000), or a share of what the first iteration takes (0.5)"
        )
    return int(amount), 0.0
