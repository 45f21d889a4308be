"""AdamW: a step against float64, many steps against torch's fused optimizer, any list at any address."""

from __future__ import annotations

import re

import pytest

from harness.collection.ops.elementwise import CUDA_TYPE
from harness.collection.ops.lists.adamw import OP, RATE
from harness.ops import Tensors
from harness.ops.comparer import complaint
from tests.one_test import one_test
from tests.rare import rare

COMPILED = [{"T": 5, "N": 1000, "master": master} for master in ("none", "float32")]
OURS = ["fused", "tuned"]
BASELINES = ["eager", "eager_foreach", "eager_loop", "compile"]
SIZES = [5, 0, 1, 3, 4, 7, 8, 255, 256, 257, 1023, 1, 1, 2047, 2048, 2049, 0, 100_003]


def slices(sizes, dtype, offset=0, gap=0):
    """Random tensors one behind the other in a buffer, the first one `offset` elements behind an aligned address."""
    import torch

    buffer = torch.randn(offset + sum(sizes) + gap * len(sizes) + 64, device="cuda", dtype=getattr(torch, dtype))
    tensors, at = [], offset
    for size in sizes:
        tensors.append(buffer[at : at + size])
        at += size + gap
    return tensors


def lists(sizes, dtype, master, offsets=(0, 0, 0, 0, 0), gap=0):
    """Tensors of an optimizer in the middle of a training, each list at an address of its own."""
    import torch

    t = Tensors()
    names = ("weights", "grads", "exp_avg", "exp_avg_sq", "copies")
    for name, offset in zip(names, offsets, strict=True):
        kind = dtype if name in ("grads", "copies") else "float32"
        setattr(t, name, slices(sizes, kind, offset, gap))
    for square in t.exp_avg_sq:
        square.square_().add_(0.01)
    if master == "none":
        t.copies = []
    t.step = torch.tensor([10.0], device="cuda")
    return t


def cloned(t):
    copies = {name: [one.clone() for one in value] for name, value in vars(t).items() if isinstance(value, list)}
    return Tensors(**copies, step=t.step.clone())


def parts(t):
    """Where indexes could go wrong: the begin, the end, and around 2^31 of the first tensor, and all of the second."""
    places = slice(5000), slice(2**31 - 100, 2**31 + 100), slice(-5000, None)
    names = ("weights", "grads", "exp_avg", "exp_avg_sq")
    some = {name: [*(getattr(t, name)[0][place] for place in places), getattr(t, name)[1]] for name in names}
    return Tensors(**some, copies=[], step=t.step)


def run_and_check(trial, variant, dtype, t, **choices):
    """A step is right by the op's own check."""
    made = trial("adamw", variant, dtype, device="cuda", T=len(t.weights), N=1, **choices)
    before = cloned(t)
    OP.variants[variant].prepare(made.ctx)(t)
    for i, expected in enumerate(OP.check(made.ctx, Tensors(**vars(t), before=before))):
        far = (expected.got.double() - expected.want).abs() > expected.allowed
        assert not bool(far.any()), (i, expected.name, int(far.sum()))
    assert all(bool((one == other).all()) for one, other in zip(t.grads, before.grads, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("master", ["none", "float32"])
@pytest.mark.parametrize(
    "offsets", [(0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (0, 1, 0, 0, 0), (0, 0, 0, 3, 2), (4, 4, 8, 4, 4)]
)
@pytest.mark.parametrize("gap", [0, 1])
def test_any_sizes_at_any_addresses(trial, variant, dtype, master, offsets, gap):
    run_and_check(trial, variant, dtype, lists(SIZES, dtype, master, offsets, gap), master=master)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1], [3, 0, 1]])
def test_lists_of_next_to_nothing(trial, variant, dtype, sizes):
    for master in ("none", "float32"):
        run_and_check(trial, variant, dtype, lists(sizes, dtype, master), master=master)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_nothing_is_written_between_the_tensors(trial, variant, dtype):
    import torch

    t = lists([1, 5, 2050, 3], dtype, "float32", (1, 0, 2, 3, 1), gap=3)
    bases = [value[0]._base for value in (t.weights, t.exp_avg, t.exp_avg_sq, t.copies)]
    before = [base.clone() for base in bases]
    run_and_check(trial, variant, dtype, t, master="float32")
    for value, base, old in zip((t.weights, t.exp_avg, t.exp_avg_sq, t.copies), bases, before, strict=True):
        for tensor in value:
            begin = tensor.storage_offset()
            old[begin : begin + tensor.numel()] = tensor
        assert torch.equal(base, old)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_ten_thousand_tensors(trial, variant, dtype):
    run_and_check(trial, variant, dtype, lists([37] * 10_000, dtype, "float32"), master="float32")


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(trial, variant):
    t = lists([2**31 + 4099, 7], "float16", "none")
    made = trial("adamw", variant, "float16", device="cuda", T=2, N=1)
    before = cloned(parts(t))
    OP.variants[variant].prepare(made.ctx)(t)
    assert complaint(OP.check(made.ctx, Tensors(**vars(parts(t)), before=before))) is None


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("decay", [0.0, 0.01, 0.5])
def test_100_steps_are_those_of_torchs_fused_optimizer(trial, variant, decay):
    """From moments of 0, where the corrections of bias matter most, to within a few roundings of float32."""
    import torch

    torch.manual_seed(0)
    sizes = [3, 1000, 4097, 1]
    ours = [torch.randn(size, device="cuda") for size in sizes]
    theirs = [weight.clone().requires_grad_() for weight in ours]
    optimizer = torch.optim.AdamW(theirs, lr=RATE, weight_decay=decay, fused=True)
    made = trial("adamw", variant, "float32", device="cuda", T=4, N=1, weight_decay=decay)
    call = OP.variants[variant].prepare(made.ctx)
    t = Tensors(weights=ours, copies=[], grads=[torch.empty_like(weight) for weight in ours])
    t.exp_avg, t.exp_avg_sq = ([torch.zeros_like(weight) for weight in ours] for _ in range(2))
    for step in range(1, 101):
        t.step = torch.tensor([float(step)], device="cuda")
        for grad, weight in zip(t.grads, theirs, strict=True):
            grad.normal_().mul_(10.0 ** (step % 5 - 3))
            weight.grad = grad.clone()
        optimizer.step()
        call(t)
    unit = torch.finfo(torch.float32).eps
    for i, weight in enumerate(theirs):
        state = optimizer.state[weight]
        for got, want in [(t.exp_avg[i], state["exp_avg"]), (t.exp_avg_sq[i], state["exp_avg_sq"])]:
            torch.testing.assert_close(got, want, rtol=8 * unit, atol=8 * unit * float(want.abs().max()))
        # A hundred roundings of a weight, half a unit each, and the roundings of the steps.
        torch.testing.assert_close(ours[i], weight.detach(), rtol=100 * unit, atol=100 * RATE * 32 * unit)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_the_copies_are_the_rounded_weights(trial, variant, dtype):
    import torch

    t = lists([1000, 3], dtype, "float32")
    run_and_check(trial, variant, dtype, t, master="float32")
    assert all(torch.equal(copy, weight.to(copy.dtype)) for copy, weight in zip(t.copies, t.weights, strict=True))


@pytest.mark.parametrize("variant", BASELINES)
@pytest.mark.parametrize("master", [rare("none"), "float32"])
@pytest.mark.parametrize("decay", [rare(0.0), 0.5])
def test_baselines_agree_with_the_reference(trial, variant, dtype, master, decay):
    if variant.startswith("compile") and (dtype, decay) != ("float16", 0.5):
        pytest.skip("compiles for seconds, to what eager_foreach does")
    made = trial("adamw", variant, dtype, T=3, N=33, master=master, weight_decay=decay)
    before = cloned(made.inputs)
    after = made.call()
    assert len(after.copies) == (3 if master == "float32" else 0)
    found = list(OP.check(made.ctx, Tensors(**vars(after), before=before)))
    assert len(found) == 3 * (3 + bool(after.copies))
    for expected in found:
        assert bool(((expected.got.double() - expected.want).abs() <= expected.allowed).all()), expected.name


def test_a_step_in_float64_is_that_of_torchs_optimizer(trial):
    import torch

    made = trial("adamw", "eager", "float32", T=1, N=50, weight_decay=0.1)
    t = made.inputs
    weight = t.weights[0].clone().requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=RATE, weight_decay=0.1, foreach=False)
    weight.grad = t.grads[0].clone()
    moments = {"exp_avg": t.exp_avg[0].clone(), "exp_avg_sq": t.exp_avg_sq[0].clone()}
    optimizer.state[weight] = {"step": t.step[0].clone() - 1, **moments}
    optimizer.step()
    t.weights[0], t.copies = weight.detach(), []
    t.exp_avg[0], t.exp_avg_sq[0] = (optimizer.state[weight][name] for name in moments)
    before = trial("adamw", "eager", "float32", T=1, N=50, weight_decay=0.1).inputs
    for expected in OP.check(made.ctx, Tensors(**vars(t), before=before)):
        assert bool(((expected.got.double() - expected.want).abs() <= expected.allowed).all()), expected.name


@one_test(
    ("change", "name"),
    [
        (lambda t: t.weights[1].add_(1e-5), "weights[1]"),
        (lambda t: t.exp_avg[0].mul_(1.001), "exp_avg[0]"),
        (lambda t: t.exp_avg_sq[2].mul_(1.001), "exp_avg_sq[2]"),
        (lambda t: t.copies[2].mul_(1.01), "copies[2]"),
    ],
)
def test_a_wrong_step_is_seen(trial, change, name):
    made = trial("adamw", "eager", "bfloat16", T=3, N=33, master="float32")
    before = cloned(made.inputs)
    after = made.call()
    assert complaint(OP.check(made.ctx, Tensors(**vars(after), before=before))) is None
    change(after)
    assert complaint(OP.check(made.ctx, Tensors(**vars(after), before=before))).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("dtype", "master", "a_parameter"),
    [("float32", "none", 28), ("float16", "float32", 28), ("float16", "none", 26)],
)
def test_the_bytes_of_a_parameter(dtype, master, a_parameter):
    values = {"tensors": "bert_base", "T": 0, "N": 0, "weight_decay": 0.01, "master": master, "world": 1}
    work = OP.work_of(values, dtype)
    assert work.read + work.written == a_parameter * 109_482_240 + 4
    assert all(OP.traffic_of(OP.variants[name], values, dtype).moved == work.read + work.written for name in OURS)


def test_all_of_a_thread_is_loaded_before_the_logarithms(ptx, dtype):
    text = ptx("adamw.cu", "adamw_tuned", {"SCALAR": CUDA_TYPE[dtype], "COPY": 1, "FOURS": 2})
    loads = re.compile(r"ld\.global\.cg\.v\d")
    (whole,) = [piece for piece in re.split(r"\n\$L\w+:|\bbra[^\n]*", text) if len(loads.findall(piece)) == 8]
    last = max(match.start() for match in loads.finditer(whole))
    # The logarithms are multiplied by the number of the step, which is read here. Compilers compute them differently.
    assert last < whole.index("ld.global.nc.f32")
    assert last < whole.index("st.global.cg")


@pytest.mark.parametrize(("more", "uses"), [({}, False), ({"SCALED": 1}, True)])
def test_a_scale_is_read_only_where_there_is_one(ptx, more, uses):
    text = ptx("adamw.cu", "adamw_tuned", {"SCALAR": "__half", "COPY": 1, "FOURS": 1} | more)
    # It is the last parameter, the eleventh; the text of a kernel begins with the list of them.
    assert (text.count("[adamw_tuned_param_10]") > 0) == uses
