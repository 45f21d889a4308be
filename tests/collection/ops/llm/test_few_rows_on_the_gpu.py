"""Kernels of decoding on a GPU: our variants against float64, at sizes and addresses that break kernels."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness import check
from harness.collection.ops.llm import _few_rows

pytestmark = pytest.mark.gpu
DTYPES = ("float16", "bfloat16")
SIZES = {
    "linear_few_rows": [
        {"M": m, "K": k, "N": n, "form": form}
        for form in ("plain", "norm", "add", "gates")
        for m, k, n in (
            *((1, 8, 1), (1, 2048, 2048), (1, 77, 33), (2, 8192, 100), (3, 1000, 999), (5, 1536, 4000)),
            *((8, 5120, 77), (9, 2056, 300), (16, 8192, 200), (16, 2048, 130_001), (40, 264, 50)),
        )
    ],
    "qkv_few_rows": [
        {"M": m, "E": e, "H": h, "G": g, "D": d}
        for m, e, h, g, d in (
            *((1, 2048, 32, 8, 64), (3, 4096, 32, 8, 128), (16, 5120, 40, 40, 128), (7, 33, 3, 1, 6)),
            *((2, 320, 4, 2, 80), (4, 32, 4, 2, 8), (20, 1000, 5, 5, 22)),
        )
    ],
    "decode_attention": [
        {"B": b, "H": h, "G": g, "T": t, "D": d}
        for b, h, g, d in ((1, 32, 8, 64), (3, 8, 8, 128), (2, 20, 2, 80), (5, 4, 2, 8), (1, 3, 1, 77), (1, 2, 1, 256))
        for t in (1, 2, 16, 127, 128, 129, 1000, 4097)
    ] + [{"B": 1, "H": 32, "G": 8, "T": 32_769, "D": 64}, {"B": 70, "H": 32, "G": 8, "T": 300, "D": 64}],
}  # fmt: skip


def complaint(made, offset, calls=2):
    """What is wrong with a call, after earlier ones, whose tensors of floats begin `offset` elements past 16 bytes."""
    variant = made.ctx.op.variants[made.ctx.case.variant]
    if variant.unsupported and variant.unsupported(made.ctx.case):
        return None
    tensors = check.new_set(made.ctx, variant, made.inputs, is_aligned=not offset)
    launch = variant.prepare(made.ctx)
    for _ in range(calls):
        launch(tensors)
    torch.cuda.synchronize()
    return check.complaint(made.ctx, variant, made.inputs, tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SIZES)
def test_our_variants_are_right(trial, op, dtype):
    found = {}
    for variant, values, offset in itertools.product(("fused", "tuned"), SIZES[op], (0, 1)):
        if offset and variant == "fused":  # which `tuned` takes there
            continue
        made = trial(op, variant, dtype, device="cuda", **values)
        found[variant, str(values), offset] = complaint(made, offset)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("warps", _few_rows.EVERY_PLAN["warps"])
@pytest.mark.parametrize("op", ["linear_few_rows", "qkv_few_rows"])
def test_threads_with_columns_of_their_own_are_right(trial, monkeypatch, op, warps):
    found = {}
    for values, stages in itertools.product(SIZES[op], (1, 3)):
        if values["M"] > 4 or values["K" if op == "linear_few_rows" else "E"] % 8:  # no such plan exists
            continue
        monkeypatch.setattr(
            _few_rows, "rule", lambda *_, count=stages: {"warps": warps, "columns": 0, "stages": count, "blocks": 2}
        )
        found[str(values), stages] = complaint(trial(op, "tuned", "bfloat16", device="cuda", **values), 0)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("op", SIZES)
def test_calls_give_the_same_bits(trial, op):
    """Sums of blocks meet in one order, whichever block ends last."""
    made = trial(op, "tuned", "bfloat16", device="cuda", **SIZES[op][1 if op != "decode_attention" else -2])
    variant = made.ctx.op.variants["tuned"]
    tensors, launch = check.new_set(made.ctx, variant, made.inputs), variant.prepare(made.ctx)
    outputs = [tensor.name for tensor in made.ctx.op.outputs]
    seen = []
    for _ in range(20):
        launch(tensors)
        seen.append([getattr(tensors, name).clone() for name in outputs])
    for later in seen[1:]:
        assert all(torch.equal(one, other) for one, other in zip(seen[0], later, strict=True))
