"""What a state dict holds: tensors by their elements, dicts, lists and plain values, without any framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True)
class Tensor:
    """Elements in their shape. `dtype`: torch's or numpy's name of it; what numpy lacks (bfloat16) stands as whole numbers of its size."""

    data: np.ndarray[Any, Any]
    dtype: str


Value: TypeAlias = "Tensor | Mapping[Any, Value] | Sequence[Value] | str | float | int | bool | bytes | complex | None"
StateDict: TypeAlias = "dict[Any, Value]"
