"""Kernels of `tuned` on a CPU with extreme inputs, as they are checked on a GPU: infinities, NaNs, large and small."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness import check, extremes
from harness.model import Case
from harness.ops import Catalogue, Context, Op, Tensors
from tests.collection.emulation import Gpu, compiler, guarded
from tests.collection.ops.test_every_op import cases

pytestmark = pytest.mark.slow  # test_kernels.py compiles each kernel; CONTRIBUTING.md says when to run this

OPS = [
    "add_rms_norm",
    "add_rms_norm_grad",
    "add_rms_norm_quantize",
    "bias_add",
    "bias_residual",
    "bn_add_relu",
    "bn_add_relu_grad",
    "cross_entropy",
    "cross_entropy_grad",
    "cross_entropy_in_place",
    "decode_attention",
    "dequantize_bias",
    "dequantize_bias_gelu_quantize",
    "dequantize_bias_residual",
    "dequantize_bias_residual_layer_norm_quantize",
    "embedding_grad",
    "layer_norm",
    "layer_norm_grad",
    "layer_norm_window_partition",
    "linear_few_rows",
    "local_array",
    "nchw_to_nhwc",
    "permute",
    "prelu",
    "prelu_grad",
    "qkv_few_rows",
    "quantize",
    "relu_grad",
    "relu_mask",
    "relu_training",
    "rms_norm",
    "rms_norm_grad",
    "rope",
    "softmax",
    "softmax_grad",
    "swiglu",
    "swiglu_grad",
    "two_biases",
    "window_attention",
    "window_attention_grad",
    "window_attention_packed",
]
"""What the stand-in for a GPU can run: other ops have instructions that it lacks, or call libraries of a GPU."""


def complaint(gpu: Gpu, op: Op, case: Case, patch: pytest.MonkeyPatch) -> str | None:
    """What is wrong with the case's calls with extreme inputs; None if nothing is."""
    import torch

    variant = op.variants[case.variant]
    ctx = Context(case, getattr(torch, case.dtype), torch.device("cpu"), torch.Generator().manual_seed(1), op)
    gpu.stand_in(patch)
    inputs, launch = check.make_inputs(ctx), variant.prepare(ctx)

    def judged(given: SimpleNamespace) -> str | None:
        encoded = variant.encode(ctx, given) if variant.encode else {}
        every = vars(check.merged(given, check.make_outputs(ctx, variant))) | encoded
        tensors = Tensors(**{name: guarded(tensor) for name, tensor in every.items()})
        launch(tensors)
        return check.complaint(ctx, variant, given, tensors)

    return extremes.complaint(ctx, inputs, judged, thorough=True)


@pytest.mark.parametrize("name", OPS)
def test_kernels_are_right_for_extreme_values(catalogue: Catalogue, emulated_folder, monkeypatch, name: str) -> None:
    compiler()
    gpu, op, found = Gpu(emulated_folder, multiprocessors=132), catalogue[name], {}
    for case in cases(op, "cuda"):
        if case.variant == "tuned":
            found[case.id] = complaint(gpu, op, replace(case, device="cpu"), monkeypatch)
    assert gpu.launched
    assert {case: wrong for case, wrong in found.items() if wrong} == {}
