"""The gradient of dropout, from bytes, from bits and from no mask at all."""

from __future__ import annotations

import ctypes
import math
import re
from types import SimpleNamespace

import pytest

from harness import cuda
from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, WIDE, Keep, scale
from harness.collection.ops.dropout.dropout import OP as DROPOUT
from harness.collection.ops.dropout.dropout_grad import OP, REPLAYED
from harness.collection.ops.elementwise import CUDA_TYPE
from tests.one_test import one_test

COMPILED = [{"N": 1000}]
OURS = ["bytes", "bitmask", "tuned", "replay"]
BITS = {"bytes": WIDE, "bitmask": WIDE, "tuned": NARROW, "replay": NARROW}
FORWARD = [("vectorized", ["bytes"]), ("bitmask_match", ["bitmask"]), ("tuned", ["tuned", "replay"])]
SIZES = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2047, 2049, 100_003]


def expected(variant, dy, mask, p=0.1):
    """Rounded to float and then to dy's type, as the kernels do."""
    import torch

    factor = torch.tensor(Keep(p, BITS[variant]).scale, device=dy.device, dtype=torch.float32)
    return torch.where(mask, (dy.float() * factor).to(dy.dtype), 0)


@pytest.fixture
def run_and_check(launch, placed, replay):
    import torch

    def check_one(variant, dy, p=0.1, seed=1, call=2, offsets=(0, 0)):
        n, dtype = dy.numel(), str(dy.dtype)[6:]
        mask = replay(p, NARROW, seed, call, 0, n)
        dx = placed(n, dtype, offsets[0])
        inputs = {"mask": mask, "bits": pack(mask), "call": torch.tensor([call], device="cuda")}
        declared = OP.tensors(OP.variants[variant])[0][1]
        other = placed(inputs[declared.name].shape, declared.dtype, offsets[1])
        other.tensor.copy_(inputs[declared.name])
        tensors = {"dy": dy, "dx": dx, declared.name: other}
        launch("dropout_grad", variant, dtype, {"N": n, "p": p}, seed=seed, **tensors)
        torch.testing.assert_close(dx.tensor, expected(variant, dy, mask, p), rtol=0, atol=0, equal_nan=True)

    return check_one


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(run_and_check, normal, variant, dtype):
    for n in SIZES:
        run_and_check(variant, normal(n, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_seeds_calls_and_probabilities(run_and_check, normal, variant):
    dy = normal(1000, "float16")
    for p in (0, 0.01, 0.1, 0.5, 1):
        for seed, call in [(0, 0), (2**32 + 5, 1), (7, 2**32 + 3)]:
            run_and_check(variant, dy, p, seed, call)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(run_and_check, normal, variant, dtype):
    for n in (1, 300, 1027):
        for dy_offset, *offsets in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 2), (4, 4, 4), (8, 8, 1)]:
            run_and_check(variant, normal(n, dtype, dy_offset), offsets=offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(run_and_check, special, variant, dtype):
    run_and_check(variant, special(dtype).repeat(90), p=0.5)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, normal, replay, variant):
    import torch

    n, call = 2**31 + 259, 4
    dy = normal(n, "float16")
    dx = torch.full_like(dy, math.nan)
    generator = torch.Generator("cuda").manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (-(-n // 32),), generator=generator, device="cuda", dtype=torch.int32)
    made = {"bits": lambda: bits, "mask": lambda: unpack(bits, n), "call": lambda: torch.tensor([call], device="cuda")}
    other = OP.tensors(OP.variants[variant])[0][1].name
    tensors = {"dy": dy, "dx": dx, other: made[other]()}
    launch("dropout_grad", variant, "float16", {"N": n, "p": 0.1}, seed=3, **tensors)
    # Slices at the start, around 2**31 and at the end stand for the rest.
    for begin in (0, 2**31 - 2**16, n - n % 32 - 2**12):
        end = min(begin + 2**17, n)
        told = unpack(bits[begin // 32 : -(-end // 32)], end - begin)
        mask = replay(0.1, NARROW, 3, call, begin, end) if variant == "replay" else told
        assert torch.equal(dx[begin:end], expected(variant, dy[begin:end], mask)), begin
    assert not bool(dx.isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize(("forward", "backwards"), FORWARD)
def test_forward_and_backward_fit(launch, normal, forward, backwards, dtype):
    """The gradient is autograd's for the mask that the forward wrote, read in the forward's own form."""
    import torch

    n, seed, shape = 100_003, 9, {"N": 100_003, "p": 0.1}
    x, dy = normal(n, dtype, seed=1), normal(n, dtype, seed=2)
    call = torch.tensor([6], device="cuda")
    declared = DROPOUT.tensors(DROPOUT.variants[forward])[1][1]
    kept = torch.empty(declared.shapes(shape)[0], device="cuda", dtype=getattr(torch, declared.dtype))
    outputs = {"y": torch.empty_like(x), declared.name: kept}
    launch("dropout", forward, dtype, shape, seed, x=x, call=call, **outputs)
    mask = kept if declared.name == "mask" else unpack(kept, n)
    leaf = x.clone().requires_grad_()
    factor = Keep(0.1, BITS[backwards[0]]).scale
    torch.where(mask, leaf.float() * factor, 0).to(x.dtype).backward(dy)
    # y is what autograd's function gives, to the last bit: the same scale in both directions.
    torch.testing.assert_close(outputs["y"], torch.where(mask, (x.float() * factor).to(x.dtype), 0), rtol=0, atol=0)
    for backward in backwards:
        tensors = {"dy": dy, "dx": torch.full_like(dy, math.nan), "call": call, declared.name: kept}
        dx = launch("dropout_grad", backward, dtype, shape, seed, **tensors).dx
        torch.testing.assert_close(dx, leaf.grad, rtol=0, atol=0)


# Without a GPU.


@pytest.fixture
def factor_of(trial, monkeypatch):
    """factor_of(op, variant, p): the float that a kernel is launched with as its scale."""
    import torch

    def factor(op, variant, p):
        given = []

        class Kernel:
            facts = None

            def __call__(self, *arguments, **_):
                given.extend(argument.value for argument in arguments if isinstance(argument, ctypes.c_float))

        monkeypatch.setattr(cuda, "load", lambda *_: Kernel())
        ctx = trial(op, variant, "float32", N=64, p=p).ctx
        declared = [tensor for tensors in ctx.op.tensors(ctx.op.variants[variant]) for tensor in tensors]
        ctx.op.variants[variant].prepare(ctx)(SimpleNamespace(**{each.name: torch.empty(64) for each in declared}))
        (one,) = given
        return one

    return factor


@pytest.mark.parametrize("p", [0, 0.01, 0.1, 0.3, 0.99, 1])
@pytest.mark.parametrize(("forward", "backwards"), FORWARD)
def test_forward_and_backward_are_scaled_by_the_same_float(factor_of, trial, forward, backwards, p):
    """It is the inverse of the probability with which the forward keeps an element, so that the mean stays."""
    keep, one = Keep(p, BITS[backwards[0]]), factor_of("dropout", forward, p)
    for backward in backwards:
        assert factor_of("dropout_grad", backward, p) == one
        assert scale(trial("dropout_grad", backward, "float32", N=1, p=p).ctx) == keep.scale
    assert one * keep.probability == pytest.approx(1 if p < 1 else 0, rel=2**-24)


@one_test(("variant", "wrong"), [("tuned", True), ("replay", True), ("bytes", False), ("eager", False)])
def test_the_reference_has_the_scale_of_the_variant(trial, variant, wrong):
    """1 / (1 - p), which is torch's, is 7e-6 off for a probability that is rounded to 16 bits."""
    import torch

    made = trial("dropout_grad", variant, "float32", N=1001, p=0.1)
    assert (made.complaint(dx=torch.where(made.inputs.mask, made.inputs.dy / 0.9, 0)) is not None) == wrong


@pytest.mark.parametrize("p", [0, 0.01, 0.1, 0.5, 1])
def test_torch_agrees_with_the_reference(trial, dtype, p):
    assert trial("dropout_grad", "eager", dtype, N=10_001, p=p).complaint_after_call() is None


def test_the_mask_is_the_one_that_replay_draws(trial, replay, monkeypatch):
    """Also where it is drawn in several chunks, the last one not full."""
    import torch

    monkeypatch.setattr("harness.collection.ops.dropout.dropout_grad._CHUNK", 256)
    seed = 2**32 + 1
    made = trial("dropout_grad", "replay", "float32", seed=seed, N=1001, p=0.1)
    assert torch.equal(made.inputs.mask, replay(0.1, NARROW, seed, REPLAYED, 0, 1001, "cpu"))
    assert OP.variants["replay"].encode(made.ctx, made.inputs)["call"].tolist() == [REPLAYED]
    assert bool((made.inputs.dy != 0).all())


def test_the_word_of_bits_is_loaded_together_with_dy(ptx, dtype):
    """Both loads are under way at once: no branch between them, before which the bits would have to be there."""
    text = ptx("dropout_grad.cu", "dropout_grad_bitmask", {"SCALAR": CUDA_TYPE[dtype]})
    straight = re.split(r"\$L__BB\w+:|\bbra\b", text)
    (of_quads,) = [part for part in straight if re.search(r"ld\.global\S*\.v[24]", part)]
    assert len(re.findall(r"\bld\.global", of_quads)) == 2


def test_bits_are_the_mask(trial):
    import torch

    made = trial("dropout_grad", "bitmask", "float32", N=1001, p=0.1)
    bits = OP.variants["bitmask"].encode(made.ctx, made.inputs)["bits"]
    assert torch.equal(unpack(bits, 1001), made.inputs.mask)
