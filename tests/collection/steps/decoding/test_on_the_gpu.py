"""Decoding on a GPU: the logits of our rung, and kernels that begin while the one before still runs."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness import devices
from harness.collection.steps.decoding import _ours, llama_decode
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Context, Tensors

pytestmark = pytest.mark.gpu


def context(size: int, tokens: int, model: str = "llama_toy", dtype: str = "bfloat16", variant: str = "ours"):
    case = Case("llama_decode", variant, dtype, (("B", size), ("C", tokens)), (("model", model),), device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)
    return Context(case, getattr(torch, dtype), torch.device("cuda"), generator, llama_decode.OP)


def complaints(ctx: Context) -> list[str]:
    t = Tensors(**llama_decode.make(ctx))
    t.before = Tensors(tokens=t.tokens.clone())
    of = llama_decode._of_one_kernel if ctx.case.variant == "persistent" else llama_decode._of_ours
    with torch.inference_mode():
        model = of(ctx)
        for _ in range(3):
            t.logits = model(t.tokens)
        return [*llama_decode.check(ctx, t)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 16, 17])
@pytest.mark.parametrize("tokens", [1, 126, 127, 128, 4096])
def test_logits_are_right(size, tokens):
    for dtype in ("bfloat16", "float16"):
        assert complaints(context(size, tokens, dtype=dtype)) == []


@pytest.mark.parametrize(("size", "tokens"), [(1, 128), (4, 4096), (16, 129)])
def test_logits_of_a_large_model_are_right(size, tokens):
    assert complaints(context(size, tokens, "llama_1b")) == []


@pytest.mark.parametrize(("size", "tokens"), [(1, 128), (1, 8191), (7, 300)])
def test_kernels_that_begin_early_give_the_same_bits(size, tokens):
    """Each kernel alone gives what the chain gives, in calls of other tokens that follow each other without a pause."""
    ctx = context(size, tokens, "llama_1b")
    with torch.inference_mode():
        model = _ours.FewSequences(ctx, llama_decode.decoder(ctx, None))
        given = [torch.randint(128_256, (size,), device="cuda") for _ in range(40)]
        chained = [model(each).clone() for each in given]
        for each, found in zip(given, chained, strict=True):
            torch.index_select(model._embedding, 0, each, out=model._x)
            for call in model.calls:
                call()
                torch.cuda.synchronize()
            assert torch.equal(model._logits, found)


@pytest.mark.parametrize("tokens", [1, 15, 128, 255, 256, 3000, 40_000])
@pytest.mark.parametrize("model", ["llama_toy", "llama_1b"])
def test_logits_of_one_kernel_are_right(model, tokens):
    for dtype in ("bfloat16", "float16"):
        assert complaints(context(1, tokens, model, dtype, variant="persistent")) == []


@pytest.mark.parametrize("tokens", [128, 8191])
def test_steps_of_one_kernel_that_follow_each_other_give_the_same_bits(tokens):
    """What a step leaves in memory, words and counters, serves the next one, which may begin at once."""
    ctx = context(1, tokens, "llama_1b", variant="persistent")
    with torch.inference_mode():
        model = llama_decode._of_one_kernel(ctx)
        given = [torch.randint(128_256, (1,), device="cuda") for _ in range(200)]
        followed = [model(each).clone() for each in given]
        for each, found in zip(given, followed, strict=True):
            alone = model(each)
            torch.cuda.synchronize()
            assert torch.equal(alone, found)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("variant", "size"),
    [*itertools.product(["ours", "ours_graph"], [3, 17]), ("persistent", 1), ("persistent_graph", 1)],
)
def test_our_rungs_are_measured(variant, size):
    case = context(size, 40, variant=variant).case
    timing = Timing(precision=0.5, max_time=0.05)
    found = measure(Job(case, timing), Catalogue()["llama_decode"], devices.kinds()["cuda"])
    assert (found.status, found.error) == ("ok", None)
