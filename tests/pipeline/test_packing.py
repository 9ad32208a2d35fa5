"""Gradients as they go between workers: bytes that say how they lie."""

import pytest
import torch

from detrain.adapters.torch.pipeline import packing
from detrain.adapters.torch.pipeline.splitting import Crossing
from detrain.adapters.torch.pipeline.tracing import Shape, Size


def crossing_of(gradient):
    sizes = (Size(1, 0), *(Size(0, length) for length in gradient.shape[1:]))
    return Crossing(
        0,
        "y",
        Shape(sizes, gradient.dtype, tuple(range(gradient.dim()))),
        0,
        1,
        0,
        has_gradient=True,
        is_of_inputs=False,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("lies", [(0, 1, 2), (1, 0, 2), (2, 1, 0)], ids=str)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_gradient_comes_as_it_lay(dtype, lies, is_there):
    values = torch.randn([(5, 3, 1)[dim] for dim in lies], generator=torch.Generator().manual_seed(0)).to(dtype)
    gradient = packing.standing(values, lies)
    crossing = crossing_of(gradient)
    for first, end in ((0, 5), (1, 4), (4, 5)):
        buffer = packing.packed(crossing, gradient, (first, end), is_there=is_there)
        assert len(buffer) == packing.packed_size(crossing, end - first)
        found, has = packing.unpacked(crossing, end - first, buffer)
        assert has == is_there
        assert torch.equal(found, gradient[first:end])
        lying = found.permute(sorted(range(3), key=lambda dim: (-found.stride(dim), dim)))
        assert lying.is_contiguous()


def test_the_same_gradient_is_the_same_bytes(monkeypatch):
    """Also where its bytes do not fill whole words: a checkpoint may hold them."""
    gradient = torch.ones(3, 7, dtype=torch.bfloat16)
    for filled in (0xAB, 0xCD):
        monkeypatch.setattr(torch, "empty", lambda size, filled=filled, **how: torch.full((size,), filled, **how))
        buffer = packing.packed(crossing_of(gradient), gradient, (0, 3), is_there=True)
        assert buffer.tolist() == [0x80, 0x3F] * 21 + [0] * 6 + [1] + [0] * 7 + [0] * 8 + [1] + [0] * 7
