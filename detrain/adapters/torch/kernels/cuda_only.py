"""What takes the place of operators on CUDA."""

from __future__ import annotations

from detrain.adapters.torch.kernels import indexing, loss, ordering, padding, pooling, resampling
from detrain.adapters.torch.kernels.dispatch import Replacement, lacking, strict

_GRADIENT = {"grad_input": ("grad_input",)}
_PAIR = ("values", "indices")

#: Operators that raise on CUDA only.
ON_CUDA = [
    Replacement("avg_pool3d_backward", pooling.average_pool3d_gradient, outs=_GRADIENT),
    Replacement("_adaptive_avg_pool2d_backward", pooling.adaptive_average2d_gradient),
    Replacement("_adaptive_avg_pool3d_backward", pooling.adaptive_average3d_gradient),
    Replacement("adaptive_max_pool2d_backward", pooling.adaptive_maximum2d_gradient, outs=_GRADIENT),
    Replacement("adaptive_max_pool3d_backward", pooling.adaptive_maximum3d_gradient, outs=_GRADIENT),
    Replacement("fractional_max_pool2d_backward", pooling.fractional_maximum2d_gradient, outs=_GRADIENT),
    Replacement("fractional_max_pool3d_backward", pooling.fractional_maximum3d_gradient, outs=_GRADIENT),
    Replacement("max_pool3d_with_indices_backward", pooling.maximum3d_gradient, outs=_GRADIENT),
    *(Replacement(f"reflection_pad{n}d_backward", padding.reflection_gradient, outs=_GRADIENT) for n in (1, 2, 3)),
    *(Replacement(f"replication_pad{n}d_backward", padding.replication_gradient, outs=_GRADIENT) for n in (1, 2, 3)),
    Replacement("upsample_linear1d_backward", resampling.linear_gradient, outs=_GRADIENT),
    Replacement("upsample_bilinear2d_backward", resampling.linear_gradient, outs=_GRADIENT),
    Replacement("upsample_trilinear3d_backward", resampling.linear_gradient, outs=_GRADIENT),
    Replacement("upsample_bicubic2d_backward", resampling.cubic_gradient, outs=_GRADIENT),
    Replacement("_upsample_bilinear2d_aa_backward", resampling.smooth_linear_gradient, outs=_GRADIENT),
    Replacement("_upsample_bicubic2d_aa_backward", resampling.smooth_cubic_gradient, outs=_GRADIENT),
    Replacement("grid_sampler_2d_backward", resampling.grid_gradients),
    Replacement("grid_sampler_3d_backward", resampling.grid_gradients),
    Replacement("cudnn_grid_sampler_backward", resampling.cudnn_grid_gradients),
    Replacement("nll_loss2d_forward", loss.nll2d, outs={"output": ("output", "total_weight")}),
    Replacement("_ctc_loss_backward", loss.ctc_gradient),
    Replacement("_ctc_loss_backward", loss.ctc_gradient, "Tensor"),
    Replacement("_embedding_bag_dense_backward", indexing.embedding_maximum_gradient),
    Replacement("bincount", indexing.counts),
    Replacement("histc", indexing.histogram, outs={"out": ("out",)}),
    Replacement("scatter_reduce", indexing.product_at, "two", {"two_out": ("out",)}, "scatter_reduce_.two"),
    Replacement("scatter", indexing.multiplied_at, "reduce", {"reduce_out": ("out",)}, "scatter_.reduce"),
    Replacement("index_reduce", indexing.reduced_at, outs={"out": ("out",)}, in_place="index_reduce_"),
    Replacement("median", ordering.median, "dim", {"dim_values": _PAIR}),
    Replacement("nanmedian", ordering.nanmedian, "dim", {"dim_values": _PAIR}),
    Replacement("kthvalue", ordering.kth_value, outs={"values": _PAIR}),
    Replacement("cumsum", ordering.running_sum, outs={"out": ("out",)}, in_place="cumsum_"),
]  # fmt: skip

#: Attention has deterministic kernels, but while the mode is to warn torch takes the others.
STRICT = [
    strict(name)
    for name in (
        "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention_backward",
        "_flash_attention_backward", "_efficient_attention_backward",
    )
]  # fmt: skip

#: Operators of torchvision that stay as they are. Registering comes before their definition, and does no harm without it.
LACKING = [
    lacking("_roi_pool_backward", "use torchvision.ops.roi_align", "torchvision"),
    lacking("_ps_roi_pool_backward", "use torchvision.ops.roi_align", "torchvision"),
    lacking("_ps_roi_align_backward", "use torchvision.ops.roi_align", "torchvision"),
    lacking("_deform_conv2d_backward", "use grid_sample and a convolution", "torchvision"),
]
