"""Unscaling: any list at any address, any scale, exactly as torch does it; every value that isn't finite is seen."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.lists.unscale import OP, TEXT_BLOCK, TEXT_ELEMENTS
from harness.ops import Tensors
from tests.rare import rare

COMPILED = [{"T": 5, "N": 1000}]
OURS = ["loop", "fused", "tuned"]
AT_ONCE = ["fused", "tuned"]
SIZES = [5, 0, 1, 3, 7, 8, 9, 31, 33, 127, 511, 513, 1, 1, 4095, 4096, 4097, 8191, 8193, 0, 100_003]
SCALES = [1 / 65536, 1 / 3, 1.0, 0.0, 3.0e38, 1e-30, math.inf, math.nan]
NOT_FINITE = [math.inf, -math.inf, math.nan]


def slices(sizes, dtype, gap=0, offset=0):
    """(buffer, tensors): random tensors one behind the other in a buffer, with gaps of some elements between them."""
    import torch

    buffer = torch.randn(offset + sum(sizes) + gap * len(sizes) + 64, device="cuda", dtype=getattr(torch, dtype))
    tensors, at = [], offset
    for size in sizes:
        tensors.append(buffer[at : at + size])
        at += size + gap
    return buffer, tensors


def of(buffer, tensor):
    """The part of a buffer that lies as a tensor does in its own."""
    return buffer[tensor.storage_offset() : tensor.storage_offset() + tensor.numel()]


def numbers(scale=1 / 65536, found=0.0):
    import torch

    return {"inv_scale": torch.tensor([scale], device="cuda"), "found_inf": torch.tensor([found], device="cuda")}


def unscaled(launch, variant, dtype, grads, **given):
    return launch("unscale", variant, dtype, {"T": len(grads), "N": 1}, grads=grads, **given)


def as_torch_does(grads, found_inf, inv_scale):
    """What torch makes of the list. Its call takes no bfloat16 on a GPU; there, plain operations do the same."""
    import torch

    if not grads or grads[0].dtype != torch.bfloat16:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, inv_scale)
        return
    for grad in grads:
        if not grad.isfinite().all():
            found_inf.fill_(1.0)
        grad.copy_(grad.float() * inv_scale)


def run_and_check(launch, variant, dtype, buffer, grads, scale=1 / 65536, found=0.0):
    """Everything in the buffer is as torch leaves it, also between the tensors, and so is the flag."""
    import torch

    expected = buffer.clone()
    twins = [of(expected, grad) for grad in grads]
    given, wanted = numbers(scale, found), numbers(scale, found)
    unscaled(launch, variant, dtype, grads, **given)
    as_torch_does(twins, wanted["found_inf"], wanted["inv_scale"])
    torch.testing.assert_close(buffer, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(given["found_inf"], wanted["found_inf"])
    return float(given["found_inf"])


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (0, 1), (1, 0), (3, 5), (8, 0)])
def test_any_sizes_at_any_addresses(launch, variant, dtype, gap, offset):
    assert run_and_check(launch, variant, dtype, *slices(SIZES, dtype, gap, offset)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_any_scale_and_any_value(launch, special, variant, dtype):
    for scale in SCALES:
        buffer, grads = slices([997, 12, 4099], dtype, gap=1)
        assert run_and_check(launch, variant, dtype, buffer, grads, scale) == 0
        grads[1].copy_(special(dtype))
        assert run_and_check(launch, variant, dtype, buffer, grads, scale) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("offset", [0, 1])
def test_one_value_that_is_not_finite_is_found_anywhere(launch, variant, dtype, offset):
    import torch

    # Around the ends of packs, of a warp's pieces and of a block's, in either size of an element.
    places = sorted(
        {at + d for at in (0, 8, 512, 1024, 4096, 8192, 16384, 20479) for d in (-2, -1, 0, 1, 2)} - {-1, -2}
    )
    sizes = [1, 7, 20_481, 300]
    for value in NOT_FINITE:
        for tensor, size in enumerate(sizes):
            for place in {at % size for at in places} | {size - 1}:
                buffer, grads = slices(sizes, dtype, gap=1, offset=offset)
                buffer[offset + grads[0].numel()] = value  # between tensors: nobody's
                given = numbers()
                unscaled(launch, variant, dtype, grads, **given)
                assert float(given["found_inf"]) == 0
                grads[tensor][place] = value
                unscaled(launch, variant, dtype, grads, **given)
                assert float(given["found_inf"]) == 1, (value, tensor, place)
    assert not torch.isfinite(grads[tensor][place])


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_a_flag_that_is_up_stays_up(launch, variant, dtype):
    buffer, grads = slices([1000, 3], dtype)
    assert run_and_check(launch, variant, dtype, buffer, grads, found=1.0) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_lists_of_next_to_nothing(launch, variant, dtype):
    for sizes in ([], [0], [0, 0, 0], [1], [0, 1, 0]):
        assert run_and_check(launch, variant, dtype, *slices(sizes, dtype)) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("variant", AT_ONCE)
@pytest.mark.parametrize("size", [1, 300, 5000])
def test_ten_thousand_tensors(launch, variant, dtype, size):
    buffer, grads = slices([size] * 10_000, dtype, gap=1)
    assert run_and_check(launch, variant, dtype, buffer, grads) == 0
    grads[-1][-1] = math.inf
    assert run_and_check(launch, variant, dtype, buffer, grads) == 1


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, variant):
    import torch

    buffer, grads = slices([2**31 + 4099, 7, 2**30 + 1], "float16", offset=1)
    expected = -buffer
    for grad in grads:
        kept = grad[-1].clone()
        grad[-1] = math.nan
        for _ in range(2):
            unscaled(launch, variant, "float16", grads, **(given := numbers(-1.0)))
            assert float(given["found_inf"]) == 1
        grad[-1] = kept
    unscaled(launch, variant, "float16", grads, **(given := numbers(-1.0)))
    assert float(given["found_inf"]) == 0
    assert all(torch.equal(got, want) for got, want in zip(grads, (of(expected, grad) for grad in grads), strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", AT_ONCE)
def test_a_list_that_changes_between_calls(trial, variant, dtype):
    import torch

    ctx = trial("unscale", variant, dtype, device="cuda", T=2, N=8).ctx
    call = OP.variants[variant].prepare(ctx)
    t = Tensors(grads=[], **numbers(0.5))
    for sizes in ([5, 6], [5, 6, 7], [3], [], [6, 5]):
        t.grads = [torch.ones(size, device="cuda", dtype=ctx.dtype) for size in sizes]
        for times in (1, 2):
            call(t)
            assert all(bool((grad == 0.5**times).all()) for grad in t.grads)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_a_captured_call_can_be_replayed(trial, variant):
    import torch

    made = trial("unscale", variant, "float16", device="cuda", T=9, N=1001)
    chosen, t = OP.variants[variant], made.inputs
    if chosen.encode:
        t.table = chosen.encode(made.ctx, t)["table"]
    call, before = chosen.prepare(made.ctx), [grad.clone() for grad in t.grads]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(t)
    assert all(torch.equal(one, other) for one, other in zip(t.grads, before, strict=True))
    graph.replay()
    assert all(torch.equal(one, -other) for one, other in zip(t.grads, before, strict=True))
    assert float(t.found_inf) == 1


def train(unscale, half):
    """(losses, skipped): a small network on fixed data, in mixed precision, with a scale that grows until it overflows.

    half: the weights are float16, too, and so are the gradients. unscale(grads, found_inf, inv_scale) is called once a
    step, with new gradients.
    """
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(37, 129), torch.nn.ReLU(), torch.nn.LayerNorm(129), torch.nn.Linear(129, 5)
    model = torch.nn.Sequential(*layers).to("cuda", torch.float16 if half else torch.float32)
    x, y = torch.randn(256, 37, device="cuda"), torch.randn(256, 5, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, skipped, scale = [], [], 2.0**20
    for step in range(60):
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.mse_loss(model(x).float(), y)
        optimizer.zero_grad(set_to_none=True)
        (loss * scale).backward()
        found = torch.zeros(1, device="cuda")
        unscale([p.grad for p in model.parameters()], found, torch.tensor([1 / scale], device="cuda"))
        losses.append(float(loss))
        if float(found):
            skipped.append(step)
            scale /= 2
        else:
            optimizer.step()
            scale *= 2 if step % 5 == 4 else 1
    return losses, skipped


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("variant", OURS)
def test_a_network_trains_as_with_torchs(launch, variant, half):
    import torch

    def ours(grads, found_inf, inv_scale):
        dtype = "float16" if half else "float32"
        unscaled(launch, variant, dtype, grads, found_inf=found_inf, inv_scale=inv_scale)

    expected = train(torch._amp_foreach_non_finite_check_and_unscale_, half)
    losses, skipped = train(ours, half)
    assert (losses, skipped) == expected
    assert 0 < len(skipped) < 50
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("variant", ["eager", "eager_loop", rare("compile")])
def test_baselines_agree_with_the_reference(trial, variant, dtype):
    made = trial("unscale", variant, dtype, T=7, N=33)
    found = {"inf": sum(int(grad.isinf().sum()) for grad in made.inputs.grads)}
    assert found == {"inf": 1}
    before = [grad.clone() for grad in made.inputs.grads]
    after = made.call()
    wanted = OP.reference(made.ctx, Tensors(**vars(made.inputs) | {"grads": before}))
    assert all(bool((got == want.to(got.dtype)).all()) for got, want in zip(after.grads, wanted["grads"], strict=True))
    assert float(after.found_inf) == float(wanted["found_inf"]) == 1


@pytest.mark.parametrize("variant", OURS)
def test_every_variant_moves_the_same_bytes(variant):
    values = {"tensors": "bert_base", "T": 0, "N": 0, "world": 1}
    moved = OP.traffic_of(OP.variants[variant], values, "float32")
    assert moved == OP.traffic_of(OP.variants["eager"], values, "float32")
    assert moved.read == 4 * 109_482_240 + 8
    assert moved.written == 4 * 109_482_240 + 4


def test_the_texts_grid_has_20_elements_a_thread():
    assert TEXT_BLOCK * TEXT_ELEMENTS == 20_480


def test_four_packs_are_loaded_before_the_first_is_used(ptx, dtype):
    """A piece in whole packs has no branch between its loads."""
    text = ptx("unscale.cu", "unscale_tuned", {"SCALAR": CUDA_TYPE[dtype], "PACKS": 4})
    pieces = [piece for piece in text.split("$L") if piece.count("ld.global.cs.v4") == 4]
    (whole,) = pieces
    assert whole.rindex("ld.global.cs.v4") < whole.index("st.global.cs.v4")
    assert whole.count("st.global.cs.v4") == 4
