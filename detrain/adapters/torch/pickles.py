"""How storages are pickled within objects of C++ types: by their bytes. Torch's own pickle of one holds its address too."""

from __future__ import annotations

from typing import Any

import torch

from detrain.adapters.torch import devices
from detrain.adapters.torch.tensors import bytes_of
from detrain.state.handlers import pickling


def untyped_of(content: bytes, device: str) -> torch.UntypedStorage:
    """A storage of these bytes. Pickles name this function."""
    storage = torch.UntypedStorage(len(content))
    bytes_of(storage).copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0))
    return storage.to(device=torch.device(device)) if device != "cpu" else storage


def typed_of(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """The same seen as elements. Pickles name this function."""
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped(storage: torch.UntypedStorage) -> tuple[Any, ...]:
    raw = bytes_of(storage)
    raw = devices.copied(raw) if storage.device.type != "cpu" else raw
    return untyped_of, (raw.numpy().tobytes(), str(storage.device))


def _typed(storage: torch.storage.TypedStorage) -> tuple[Any, ...]:
    return typed_of, (storage._untyped_storage, storage.dtype)


def register() -> None:
    """Let the handlers of `detrain.state.handlers.pickling` pickle storages so."""
    pickling.reducers[torch.UntypedStorage] = _untyped
    pickling.reducers[torch.storage.TypedStorage] = _typed
