"""The family of a kernel or of a CPU operator, by its name.

Operators of torch are looked up first. Then the first rule whose pattern occurs in the name decides, whatever the case
of its letters. So a rule for what is special stands before one for what is general: the kernel of a convolution may
have "gemm" in its name, and a kernel of attention "softmax". A name that no rule knows is of the family "other".

Who brings kernels declares their families: `declare("copy", "^my_copy")`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.errors import UsageError, nearest, shown, shown_place, user_place

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels that do work of one kind. title: its name in tables. hint: what belongs to it."""

    name: str
    title: str
    hint: str


_EVERY = (
    Family("gemm", "GEMM", "products of matrices, and of a matrix and a vector"),
    Family("convolution", "convolution", "forward and both gradients"),
    Family("attention", "attention", "fused kernels; attention of separate kernels counts as GEMM, softmax and so on"),
    Family("normalisation", "normalisation", "layer, batch, group and RMS norm, forward and backward"),
    Family("softmax", "softmax", "also its logarithm, forward and backward"),
    Family("elementwise_vectorised", "element-wise vectorised", "a thread loads and stores several neighbours at once"),
    Family("elementwise_unrolled", "element-wise unrolled", "a thread loads and stores one element at a time"),
    Family("reduction", "reduction", "sums, means, maxima, losses and pooling"),
    Family("copy", "copy", "copies, casts, fills, concatenations, gathers, scatters, changes of layout"),
    Family("optimiser", "optimiser", "fused updates of many tensors, and other work on lists of tensors"),
    Family("unscale", "unscale", "in mixed precision, gradients are divided by the loss's scale and checked"),
    Family("communication", "communication", "between devices; its time includes waiting for other devices"),
    Family(OTHER, "other", "names that no rule knows; on a CPU also views, allocations and autograd's own work"),
)
FAMILIES = {family.name: family for family in _EVERY}

_OPERATORS = {
    "gemm": "mm addmm bmm baddbmm addbmm addmv addr mv dot linear matmul einsum _int_mm _scaled_mm mkldnn_linear",
    "copy": "copy _to_copy to clone contiguous cat stack fill zero zeros ones full index pad roll flip constant_pad_nd "
    "_index_put_impl masked_select repeat tile triu tril",
    "reduction": "sum mean amax amin max min norm linalg_vector_norm var std var_mean any all argmax argmin prod "
    "logsumexp cumsum mse_loss l1_loss _local_scalar_dense item count_nonzero topk",
    "elementwise_vectorised": "add sub rsub mul div neg abs pow square sqrt rsqrt exp log sin cos tanh sigmoid relu "
    "gelu silu elu leaky_relu hardtanh hardswish softplus mish clamp clamp_min clamp_max threshold where masked_fill "
    "maximum minimum eq ne lt le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not "
    "reciprocal lerp addcmul addcdiv erf sign floor round ceil native_dropout dropout bernoulli normal uniform random "
    "_prelu_kernel threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
    "hardswish_backward leaky_relu_backward native_dropout_backward _prelu_kernel_backward",
}
"""Operators of torch on the CPU that are known by their whole name, without the '_' of operators that work in place."""
_BY_OPERATOR = {f"aten::{word}": name for name, words in _OPERATORS.items() for word in words.split()}

_NORM = r"layer_?norm|batch_?norm|group_?norm|instance_?norm|rms_?norm"
_CONVOLUTION = r"conv(olution|olve|[123]d|_depthwise|fwd|dgrad|wgrad|_)|fprop|dgrad|wgrad|winograd|scudnn|\dcudnn|"
_COPY = (
    r"memcpy|memset|copy_kernel|CatArray|roll_cuda|gather|scatter|indexing_backward|"
    r"index_?(select|put|copy|fill|func|_elementwise)|"
)
_FIRST = (
    # What the wrappers of autograd take on the CPU is no work of the operators that they are named after.
    (OTHER, r"^autograd::|^\w+Backward\d+$|^torch::"),
    ("communication", r"nccl|c10d::|^gloo|all_?reduce|all_?gather|reduce_scatter|cross_device_reduce"),
    # What torch.compile makes: poi is element-wise, red and per are reductions, tem is a template, such as mm's.
    ("attention", r"^triton_tem_\w*attention"),
    ("convolution", r"^triton_tem_\w*conv"),
    ("gemm", r"^triton_(tem_|mm|bmm|addmm)"),
    ("elementwise_vectorised", r"^triton_poi_"),
    ("normalisation", rf"^triton_(red|per|for)\w*({_NORM})"),
    ("softmax", r"^triton_(red|per|for)\w*softmax"),
    ("reduction", r"^triton_(red|per|split_scan)_"),
)
"""Rules that come first."""
_RULES = (
    ("copy", r"^stream$"),  # which measures what a memory can do
    ("elementwise_unrolled", r"rotary|(^|_)rope(_|$)"),  # whose names may have "embedding", too
    ("unscale", r"non_finite_check_and_unscale"),
    ("optimiser", r"amp_update_scale"),
    ("optimiser", r"multi_tensor_apply|^aten::_foreach_|^aten::_fused_(adam|sgd|adagrad)|fused_?adam|fused_?sgd"),
    ("attention", r"flash|fmha|attention|sdpa|^mha_|_mha_|attn_(fwd|bwd|inner)"),
    ("convolution", rf"{_CONVOLUTION}im2col|col2im|cudnn::gemm|fft2d|implicit_gemm"),
    ("normalisation", rf"{_NORM}|RowwiseMoments|GammaBetaBackward|batchnorm|cudnn::bn_|ComputeFusedParams"),
    ("softmax", r"softmax"),
    ("gemm", r"gemm|gemv|nvjet|cublas|cutlass|_xmma_|splitkreduce|^dot_kernel|reduce_1Block|linear_pointwise|qlinear"),
    ("copy", rf"{_COPY}embedding|transpose_|nchw_?to|nhwc_?to|window_[pr]|FillFunctor|permute|triu|tril"),
    (
        "reduction",
        r"reduce_kernel|_reduce_|reduction|nll_loss|pool|cross_entropy|cub::.*(Reduce|Scan|Sort|Histogram|Select|Unique)",
    ),
    ("elementwise_vectorised", r"vectorized_elementwise|fused_dropout_kernel_vec"),
    (
        "elementwise_unrolled",
        r"swiglu|geglu|elementwise|fused_dropout|masked_fill|where_kernel|pointwise",
    ),
)
_DECLARED: dict[tuple[str, str], None] = {}
"""Rules for kernels that ops bring along, in the order in which they were declared."""


def declare(family_name: str, pattern: str) -> None:
    """Say that kernels whose names have this pattern, whatever the case of letters, are of this family.

    It counts before all rules for other kernels, except the rules for communication and for what torch.compile makes.
    Of several that fit a name, the one that was declared first counts. Raises UsageError for an unknown family, and for
    a pattern that is no regular expression, with the file and line of the declaration.
    """
    _declare(shown_place(user_place()), family_name, pattern)


def _declare(where: str, family_name: object, pattern: object) -> None:
    if not isinstance(pattern, str):
        raise UsageError(f"{where}: the pattern {shown(pattern)} isn't text", "a regular expression is allowed")
    if not isinstance(family_name, str) or family_name not in FAMILIES:
        advice = nearest(family_name if isinstance(family_name, str) else "", FAMILIES)
        raise UsageError(f"{where}: kernels like {shown(pattern)} can't be of the family {shown(family_name)}", advice)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        advice = "Python's module re says what is"
        raise UsageError(f"{where}: {shown(pattern)} is no regular expression: {error}", advice) from None
    _DECLARED[family_name, pattern] = None
    family.cache_clear()


def read(file: Path) -> None:
    """Declare what a user's file says: a family and a pattern a line, such as 'attention ^my_kernel'.

    '#' begins a comment.
    Raises UsageError, with the file and the line, for a file that can't be read, a line that lacks a part, and for what
    `declare` refuses.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file}: can't be read: {error}", "name a text file with a family and a pattern a line"
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split(maxsplit=1)
        if not words:
            continue
        if len(words) < 2:
            raise UsageError(f"{file}:{number}: '{words[0]}' has no pattern", "write a family, a space and a pattern")
        _declare(f"{file}:{number}", words[0], words[1].strip())


@lru_cache(maxsize=4096)
def family(name: str) -> str:
    """The name of the family of a kernel, as a profiler writes it, or of an operator such as 'aten::mm'."""
    if known := _BY_OPERATOR.get(name.removesuffix("_")):
        return known
    rules = (*_FIRST, *_DECLARED, *_RULES)
    return next((found for found, pattern in rules if re.search(pattern, name, re.IGNORECASE)), OTHER)
