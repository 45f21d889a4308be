"""The backward of attention over windows: all kernels against float64 at what breaks them, plans, declarations."""

from __future__ import annotations

import math

import pytest

from harness import check
from harness.collection.ops.attention import _window_attention_grad as grad
from harness.collection.ops.attention._window_attention_grad_plan import AttentionGradPlan, shared_bytes
from harness.collection.ops.attention.window_attention_grad import OP
from harness.collection.ops.chip import H200
from harness.cuda.assumed import KNOWN, assuming
from harness.expressions import ExpressionError
from harness.model import Case, Traffic
from harness.ops import Context, Tensors
from tests.one_test import one_test


def values(w, h, t, d, g=1, bias="yes", mask="none"):
    return {"W": w, "H": h, "T": t, "D": d, "G": g, "bias": bias, "mask": mask}


COMPILED = [
    values(8192, 4, 49, 32, 64, "yes", "shift"),
    values(8192, 4, 49, 32, bias="no"),
    values(8192, 4, 64, 32, 64, "yes", "shift"),
    values(512, 4, 144, 32, 64, "yes", "shift"),
    values(64, 3, 17, 64, 2, "no", "shift"),
    values(2048, 6, 64, 30, 64, "yes", "shift"),
]
LOCAL_MEMORY = ("unfused",)  # its products are torch's, which take no pretended tensors; its kernel is softmax_grad's
# 144 tokens: numbers that are needed once a window; a strip of S and one of dP take the other registers. 80 bytes with
# NVRTC 13.0, on sm_80 84 with NVRTC 13.5.
SPILLED = 84
OURS = ["fused", "tuned"]
CHOICES = [("yes", "none"), ("yes", "shift"), ("no", "none"), ("no", "shift")]
SHAPES = [
    (1, 1, 1, 32, 1),  # one token
    (1, 1, 49, 32, 1),  # one window
    (2, 3, 7, 32, 2),  # less than a tile
    (6, 2, 16, 64, 3),  # one strip
    (6, 1, 17, 32, 2),  # one row of a second strip
    (5, 2, 33, 64, 1),  # three strips
    (4, 3, 48, 32, 2),
    (300, 3, 49, 32, 4),  # several windows a block
    (2000, 4, 49, 32, 8),  # several masks a block
    (6, 5, 49, 64, 6),
    (70, 4, 64, 32, 7),
    (6, 2, 65, 32, 2),  # sums in shared memory
    (5, 1, 81, 64, 5),
    (140, 2, 144, 32, 4),
    (2, 500, 10, 32, 1),  # more heads than blocks
    (300, 6, 64, 30, 4),  # rows in words
    (6, 2, 49, 62, 2),
    (6, 2, 49, 2, 2),
    (140, 2, 144, 30, 4),
    (6, 2, 33, 48, 2),  # packs that fill a row in part
    (70, 3, 49, 24, 2),
]


def case_of(variant, dtype, shape):
    sizes = {name: value for name, value in shape.items() if name not in OP.choices}
    return Case(OP.name, variant, dtype, tuple(sizes.items()), tuple((name, shape[name]) for name in OP.choices))


def called(made):
    """All tensors after a call, with what the variant encodes among them."""
    ctx, variant = made.ctx, OP.variants[made.ctx.case.variant]
    given = Tensors(**(variant.encode(ctx, made.inputs) if variant.encode else {}))
    tensors = check.merged(made.inputs, check.make_outputs(ctx, variant), given)
    return check.collect(OP, variant, tensors, variant.prepare(ctx)(tensors))


def outputs_of(made):
    after = called(made)
    return {tensor.name: getattr(after, tensor.name) for tensor in OP.outputs}


# ---- GPU.


@pytest.mark.gpu
@pytest.mark.parametrize(("bias", "mask"), CHOICES)
@pytest.mark.parametrize("dtype", grad.HALVES)
@pytest.mark.parametrize("variant", [*OURS, "unfused"])
def test_shapes(trial, variant, dtype, bias, mask):
    for shape in SHAPES:
        chosen = values(*shape, bias, mask)
        made = trial(OP.name, variant, dtype, device="cuda", **chosen)
        assert made.complaint(**outputs_of(made)) is None, shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", grad.HALVES)
@pytest.mark.parametrize("variant", [name for name in OP.variants if name not in (*OURS, "unfused")])
def test_what_others_give(trial, variant, dtype):
    """They may be inexact, not wrong."""
    for bias, mask in CHOICES:
        made = trial(OP.name, variant, dtype, device="cuda", **values(64, 4, 49, 32, 8, bias, mask))
        ctx, chosen = made.ctx, OP.variants[variant]
        if chosen.unsupported and chosen.unsupported(ctx.case):
            continue
        assert check.verdict(ctx, chosen, made.inputs, called(made)).wrong is None, (bias, mask)


def run(launch, placed, made, offset=0):
    """The outputs of a call with all tensors so many elements past aligned addresses; nothing around them changes."""
    case = made.ctx.case
    inputs = {}
    for name, tensor in vars(made.inputs).items():
        inputs[name] = placed(tensor.shape, case.dtype, offset)
        inputs[name].tensor.copy_(tensor)
    outputs = {tensor.name: placed(tensor.shapes(case.values)[0], case.dtype, offset) for tensor in OP.outputs}
    launch(OP.name, case.variant, case.dtype, case.values, **inputs, **outputs)
    return {name: output.tensor for name, output in outputs.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", grad.HALVES)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(trial, launch, placed, variant, dtype):
    for tokens in (49, 64, 144):
        for offset in (0, 1, 2, 8):
            for size in (30, 32, 40):
                made = trial(OP.name, variant, dtype, device="cuda", **values(12, 2, tokens, size, 4, "yes", "shift"))
                assert made.complaint(**run(launch, placed, made, offset)) is None, (tokens, size, offset)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", grad.HALVES)
def test_two_warps_that_share_a_strip(trial, dtype):
    """No rule takes this plan, but a search may."""
    for shape in ((6, 2, 65, 32, 2), (5, 1, 81, 64, 5), (300, 2, 100, 32, 4), (140, 2, 144, 32, 4), (7, 3, 144, 64, 1)):
        for bias, mask in CHOICES:
            made = trial(OP.name, "tuned", dtype, device="cuda", **values(*shape, bias, mask))
            made.ctx.tried = {"sharers": 2}
            made.inputs.mask[made.inputs.mask < 0] = -math.inf
            first, second = outputs_of(made), outputs_of(made)
            assert made.complaint(**first) is None, (shape, bias, mask)
            assert all(first[name].equal(second[name]) for name in first), (shape, bias, mask)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_results_repeat_bit_by_bit(trial, launch, placed, variant):
    import torch

    for shape in ((4096, 4, 49, 32, 64), (256, 2, 144, 32, 4)):
        made = trial(OP.name, variant, "float16", device="cuda", **values(*shape, "yes", "shift"))
        first, second = (run(launch, placed, made) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first), shape


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [49, 144])
@pytest.mark.parametrize("variant", [*OURS, "unfused"])
def test_masks_of_minus_infinity(trial, variant, tokens):
    """A key that a query hasn't counts for nothing. A query without keys has NaN, and so has what depends on it."""
    for whole_row in (False, True):
        made = trial(OP.name, variant, "float16", device="cuda", **values(8, 2, tokens, 32, 4, "yes", "shift"))
        made.inputs.mask[made.inputs.mask < 0] = -math.inf
        if whole_row:
            made.inputs.mask[1, 3] = -math.inf
        outputs = outputs_of(made)
        assert made.complaint(**outputs) is None
        assert bool(outputs["dq"][1, :, 3].isnan().all()) == whole_row
        assert not bool(outputs["dq"][::4].isnan().any())


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [49, 144])
@pytest.mark.parametrize("variant", OURS)
def test_a_mask_of_the_lowest_number_gives_all_keys_the_same_weight(trial, variant, tokens):
    import torch

    made = trial(OP.name, variant, "bfloat16", device="cuda", **values(8, 2, tokens, 32, 4, "yes", "shift"))
    made.inputs.mask[1, 3] = torch.finfo(torch.bfloat16).min
    assert made.complaint(**outputs_of(made)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_no_windows(trial, variant):
    made = trial(OP.name, variant, "float16", device="cuda", **values(0, 2, 49, 32))
    assert not bool(outputs_of(made)["dbias"].any())


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, variant):
    """Windows at both ends and around 2**31 elements stand for the rest."""
    import torch

    shape = values(2**20 + 64, 1, 64, 32, 1, "no")
    sizes = tuple(shape[name] for name in "WHTD")
    assert math.prod(sizes) > 2**31
    given = {name: torch.empty(sizes, device="cuda", dtype=torch.float16).normal_() for name in ("dout", "q", "k", "v")}
    given |= {name: torch.empty(0, 64, 64, device="cuda", dtype=torch.float16) for name in ("bias", "mask", "dbias")}
    given |= {name: torch.full(sizes, math.nan, device="cuda", dtype=torch.float16) for name in ("dq", "dk", "dv")}
    launch(OP.name, variant, "float16", shape, **given)
    for first in (0, 2**20 - 32, 2**20 + 32):
        part = {name: tensor[first : first + 32] for name, tensor in given.items()}
        some = case_of(variant, "float16", values(32, 1, 64, 32, 1, "no"))
        ctx = Context(some, torch.float16, torch.device("cuda"), torch.Generator("cuda"), OP)
        tensors = Tensors(**part)
        assert check.complaint(ctx, OP.variants[variant], tensors, tensors) is None, first
    assert not any(bool(given[name].isnan().any()) for name in ("dq", "dk", "dv"))


# ---- Plans, and what is declared.


@one_test(
    ("tokens", "dim", "stages", "resident"),
    [(49, 32, 2, 3), (64, 32, 2, 3), (49, 64, 2, 2), (16, 32, 2, 12), (144, 32, 2, 1), (144, 64, 1, 1)],
)
def test_plans_fit_into_a_multiprocessor(tokens, dim, stages, resident):
    plan = AttentionGradPlan.of(tokens, dim, has_bias=True, chip=H200)
    assert (plan.stages, plan.resident) == (stages, resident)
    assert plan.shared <= H200.shared
    assert plan.resident * (plan.shared + 1024) <= H200.shared + 1024
    assert plan.shared >= shared_bytes(tokens, dim, stages)


def test_two_warps_share_a_strip_in_the_room_that_one_has():
    one, two = (AttentionGradPlan.of(144, 32, True, H200, sharers) for sharers in (1, 2))
    assert (two.threads, two.groups, two.shared) == (2 * one.threads, one.groups, one.shared)
    assert AttentionGradPlan.of(80, 32, True, H200, 2).resident == 2
    odd = AttentionGradPlan.of(100, 32, True, H200, 2)  # 13 tiles, of which each warp has room for seven
    assert odd.groups == 14 * 7 * 32


@one_test(
    ("tokens", "size", "choices", "ruled"),
    [(144, 32, (1, 2), 2), (129, 32, (1, 2), 2), (128, 32, (1, 2), 1), (144, 64, (1, 2), 1), (144, 30, (1,), 1)],
)
def test_two_warps_may_share_strips_of_long_windows(tokens, size, choices, ruled):
    tuning, case = OP.variants["tuned"].tuning, case_of("tuned", "float16", values(8, 2, tokens, size))
    assert tuning.parameters(case) == {"sharers": choices}
    with assuming(KNOWN["sm_90"]):
        assert tuning.rule(case) == {"sharers": ruled}


@one_test(
    ("arch", "bias", "sharers"), [("sm_80", "yes", 1), ("sm_80", "no", 2), ("sm_120", "yes", 1), ("sm_100", "yes", 2)]
)
def test_two_warps_share_strips_by_rule_where_a_block_has_room_for_their_sums(arch, bias, sharers):
    case = case_of("tuned", "bfloat16", values(8, 2, 144, 32, bias=bias))
    with assuming(KNOWN[arch]):
        assert OP.variants["tuned"].tuning.rule(case) == {"sharers": sharers}


@one_test(("windows", "heads"), [(8192, 4), (256, 24), (1, 1), (64, 1000), (0, 3), (5000, 7)])
def test_blocks_share_windows_evenly(windows, heads):
    plan = AttentionGradPlan.of(49, 32, has_bias=True, chip=H200)
    parts = plan.parts(windows, heads, H200.multiprocessors)
    assert 0 <= parts <= windows
    if windows * heads > 10_000:
        waves = -(-parts * heads // (plan.resident * H200.multiprocessors))
        assert waves * -(-windows // parts) <= 1.2 * windows * heads / (plan.resident * H200.multiprocessors)


@pytest.mark.parametrize(("bias", "mask"), CHOICES)
def test_the_reference_is_what_autograd_gives(trial, bias, mask):
    import torch

    t = trial(OP.name, "eager", "float16", **values(6, 2, 10, 32, 3, bias, mask)).inputs
    given = [getattr(t, name).double().requires_grad_() for name in ("q", "k", "v", "bias")]
    q, k, v, of_heads = given
    added = of_heads[None] if len(of_heads) else 0
    added = added + (t.mask.double().repeat(2, 1, 1)[:, None] if len(t.mask) else 0)
    out = torch.softmax(q @ k.mT / 32**0.5 + added, -1) @ v
    gradients = torch.autograd.grad(out, given, t.dout.double(), allow_unused=True)
    wanted = OP.reference(None, t)
    for name, gradient in zip(("dq", "dk", "dv", "dbias"), gradients, strict=True):
        if gradient is not None:
            torch.testing.assert_close(wanted[name], gradient)


@one_test("dtype", grad.HALVES)
@one_test("tokens", [8, 49])
def test_eager_and_compile_are_right_on_the_cpu(trial, dtype, tokens):
    for variant in ("eager", "compile"):
        made = trial(OP.name, variant, dtype, **values(12, 2, tokens, 32, 4, "yes", "shift"))
        with pytest.MonkeyPatch.context() as patch:
            import torch

            patch.setattr(torch, "compile", lambda function, **_: function)
            outputs = outputs_of(made)
        assert made.complaint(**outputs) is None


@pytest.mark.parametrize("dtype", grad.HALVES)
def test_what_lacks_a_term_is_noticed(trial, dtype):
    """A window that dbias lacks, a query that dk and dv lack, a key that dq lacks, and scores without the scaling."""
    tuned = trial(OP.name, "tuned", dtype, **values(12, 2, 49, 32, 4, "yes", "shift"))
    exact = grad.ExactAttentionGrad.of(tuned.inputs)
    right = OP.reference(tuned.ctx, tuned.inputs)

    def told(**changed):
        rounded = {name: value.to(tuned.inputs.q.dtype) for name, value in (right | changed).items()}
        return tuned.complaint(**rounded)

    assert told() is None
    assert "dbias" in told(dbias=exact.ds[1:].sum(0))
    assert "dv" in told(dv=exact.p[:, :, 1:].mT @ exact.dout[:, :, 1:])
    assert "dk" in told(dk=exact.ds[:, :, 1:].mT @ exact.q[:, :, 1:] / 32**0.5)
    assert "dq" in told(dq=exact.ds[..., 1:] @ exact.k[:, :, 1:] / 32**0.5)
    assert "dq" in told(dq=exact.ds @ exact.k)


@one_test("extreme", ["dout", "v"])
def test_gradients_of_the_smallest_numbers_must_keep_their_places(trial, extreme):
    """dS rounded to halves as it is, as `tuned` and torch round it, is right; the scaled dS loses what the check wants.

    So does a kernel that leaves out a key, or all that is as small.
    """
    import torch

    tuned = trial(OP.name, "tuned", "float16", **values(64, 4, 49, 32, 4, "yes", "shift"))
    rows = getattr(tuned.inputs, extreme)
    rows[1::2] = torch.full_like(rows[1::2], torch.finfo(rows.dtype).smallest_normal).copysign(rows[1::2])
    exact = grad.ExactAttentionGrad.of(tuned.inputs)
    right = OP.reference(tuned.ctx, tuned.inputs)
    scale = 32**-0.5

    def told(ds, after):
        halves = ds.half().double()
        products = {"dq": halves @ exact.k * after, "dk": halves.mT @ exact.q * after}
        return tuned.complaint(**{name: value.half() for name, value in (right | products).items()})

    assert told(exact.ds, scale) is None
    assert "wrong" in told(exact.ds * scale, 1.0)
    assert "wrong" in told(exact.ds * (torch.arange(49) != 7), scale)
    assert "wrong" in told(exact.ds.where(exact.ds.abs() > 1e-4, 0.0), scale)


def test_what_ours_cannot_run():
    for variant in OURS:
        reason = OP.variants[variant].unsupported
        assert reason(case_of(variant, "float16", values(8, 4, 49, 32))) is None
        assert reason(case_of(variant, "float16", values(8, 4, 49, 30))) is None
        assert "even sizes up to 64" in reason(case_of(variant, "float16", values(8, 4, 49, 27)))
        assert "even sizes up to 64" in reason(case_of(variant, "float16", values(8, 4, 49, 66)))
        assert "144 tokens" in reason(case_of(variant, "float16", values(8, 4, 145, 32)))
    cudnn = OP.variants["sdpa_cudnn"].unsupported
    assert "no gradient of a bias" in cudnn(case_of("sdpa_cudnn", "float16", values(8, 4, 49, 32)))
    for variant, bias in (("sdpa_efficient", "yes"), ("sdpa_cudnn", "no")):
        reason = OP.variants[variant].unsupported
        assert "not of 30" in reason(case_of(variant, "float16", values(8, 4, 49, 30) | {"bias": bias}))
        assert reason(case_of(variant, "float16", values(8, 4, 49, 32) | {"bias": bias})) is None


def test_masks_must_go_round():
    with pytest.raises(ExpressionError, match="W = 10 isn't a multiple of G = 4"):
        OP.work_of(values(10, 4, 49, 32, 4, "yes", "shift"), "float16")


def test_what_a_call_has_to_do():
    s = values(64, 4, 49, 32, 8, "yes", "shift")
    matrix, square = grad.sizes(s, 2)
    work = OP.work_of(s, "bfloat16")
    assert (work.read, work.written) == (4 * matrix + (4 + 8) * 4802, 3 * matrix + 4 * 4802)
    assert dict(work.flops) == {"bfloat16": 5 * 2 * 64 * 4 * 49 * 49 * 32}
    assert OP.traffic_of(OP.variants["tuned"], s, "float16") == Traffic(work.read, work.written)
    fused = OP.traffic_of(OP.variants["fused"], s, "float16")
    assert fused == Traffic(work.read + square, work.written + square)
