"""numpy's dtypes as text, and back."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np


def dtype_text(dtype: Any) -> str:
    """A dtype as text: a structured one's as that of a list of fields, or of a dict where the list does not tell all."""
    if dtype.names is None:
        return str(dtype.str)
    plain = _plain_fields(dtype)
    return repr(_all_of(dtype) if plain is None else plain)


def _plain_fields(dtype: Any) -> list[Any] | None:
    """Names and dtypes of fields, if one follows the other; None for those with gaps, over others, or of rows of another class."""
    try:
        fields: list[Any] = dtype.descr
    except ValueError:
        return None
    again = np.dtype(fields)
    is_same = again == dtype and again.type is dtype.type and again.isalignedstruct == dtype.isalignedstruct
    return fields if is_same else None


def _all_of(dtype: Any) -> Any:
    """A dtype as literals."""
    if dtype.subdtype is not None:
        return _all_of(dtype.subdtype[0]), dtype.shape
    if dtype.names is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    layout = {
        "names": list(dtype.names), "formats": [_all_of(one[0]) for one in fields], "offsets": [one[1] for one in fields],
        "itemsize": dtype.itemsize,
    }  # fmt: skip
    return {"layout": layout, "aligned": dtype.isalignedstruct, "is_record": dtype.type is np.record}


def _dtype_of(literals: Any) -> Any:
    """The inverse of `_all_of`."""
    if isinstance(literals, tuple):
        return np.dtype((_dtype_of(literals[0]), literals[1]))
    if isinstance(literals, str):
        return np.dtype(literals)
    layout = {**literals["layout"], "formats": [_dtype_of(one) for one in literals["layout"]["formats"]]}
    made: Any = np.dtype(layout, align=literals["aligned"])  # type: ignore[call-overload]
    return np.dtype((np.record, made)) if literals["is_record"] else made


def text_dtype(text: str) -> np.dtype[Any]:
    """The inverse of `dtype_text`."""
    if text.startswith(("[", "{")):
        literals = ast.literal_eval(text)
        return np.dtype(literals) if isinstance(literals, list) else _dtype_of(literals)
    return np.dtype(text)
