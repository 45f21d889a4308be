"""The backward of attention over heads as they lie in qkv, on a CPU: gradients are right, and lie as qkv does."""

from __future__ import annotations

import math

import pytest

from harness import check, cuda
from harness.ops import Context, Tensors
from tests.collection.conftest import case_of
from tests.collection.emulation import Gpu, compiler, guarded

WINDOWS, HEADS = 4, 2


@pytest.mark.slow  # tests/collection/nn/test_on_the_gpu.py has the rule's plan
@pytest.mark.parametrize("sharers", [1, 2])
@pytest.mark.parametrize(("tokens", "size", "offset"), [(80, 32, 0), (80, 32, 1), (81, 64, 0), (144, 32, 0)])
def test_gradients_lie_where_queries_keys_and_values_do(
    catalogue, emulated_folder, monkeypatch, tokens, size, offset, sharers
):
    import torch

    compiler()
    gpu, op = Gpu(emulated_folder), catalogue["window_attention_grad"]
    values = {"W": WINDOWS, "H": HEADS, "T": tokens, "D": size, "G": 2, "mask": "shift"}
    case = case_of(op, "tuned", "float16", values)
    ctx = Context(case, torch.float16, torch.device("cpu"), torch.Generator().manual_seed(1), op)
    ctx.tried = {"sharers": sharers}
    given = check.make_inputs(ctx)
    qkv = torch.stack([given.q, given.k, given.v]).permute(1, 3, 0, 2, 4).contiguous()
    placed = guarded(qkv, offset)
    dqkv = guarded(torch.full_like(qkv, math.nan), offset)
    dbias = guarded(torch.full_like(given.bias, math.nan), 0)
    of_heads = {"dout": guarded(given.dout.transpose(1, 2).contiguous(), offset)}
    squares = {"bias": guarded(given.bias, 0), "mask": guarded(given.mask, 0), "dbias": dbias}
    gpu.stand_in(monkeypatch)
    monkeypatch.setattr(cuda, "load", lambda file, entry, macros: gpu.load(file, entry, {**macros, "PACKED": HEADS}))
    op.variants["tuned"].prepare(ctx)(
        Tensors(**of_heads, **squares, q=placed, k=placed, v=placed, dq=dqkv, dk=dqkv, dv=dqkv)
    )
    outputs = dict(zip(("dq", "dk", "dv"), dqkv.permute(2, 0, 3, 1, 4).contiguous(), strict=True))
    assert check.complaint(ctx, op.variants["tuned"], given, Tensors(**vars(given), **outputs, dbias=dbias)) is None
