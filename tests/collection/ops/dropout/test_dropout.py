"""Dropout: every bit is what seed, call and element say, at the sizes and addresses that break kernels.

What is random has fixed seeds here, so a test that passes once passes always; |z| < 5 fails by chance once in 1.7
million draws.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness import check
from harness.collection.ops.bits import pack, unpack
from harness.collection.ops.dropout._dropout import NARROW, WIDE, Keep
from harness.collection.ops.dropout._philox import numbers
from harness.collection.ops.dropout.dropout import OP
from harness.model import Case
from harness.ops import Catalogue
from harness.ops.baselines import MODES
from tests.one_test import one_test

COMPILED = [{"N": 1000}]
OURS = ["naive", "vectorized", "bitmask_match", "bitmask_shuffle", "tuned"]
SIZES = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2047, 2049, 100_003]
PROBABILITIES = [0, 0.01, 0.1, 0.5, 1]
BIG = 2**27  # elements of the statistics
SIGMAS = 5


def bits_of(variant):
    return NARROW if variant == "tuned" else WIDE


def place_of(variant, elements):
    """Where in the wide stream the elements' numbers are. In `naive` the numbers of one call are 256 elements apart."""
    if variant != "naive":
        return elements
    group = elements // 1024 * 256 + elements % 256
    return 4 * group + elements // 256 % 4


@pytest.fixture
def drawn(replay):
    """drawn(variant, p, seed, call, begin, end): the mask that the variant must draw for these elements."""
    import torch

    def draw(variant, p, seed, call, begin, end):
        if variant != "naive":
            return replay(p, bits_of(variant), seed, call, begin, end)
        places = place_of(variant, torch.arange(begin, end, device="cuda"))
        return numbers(seed, call, places, WIDE) < Keep(p, WIDE).threshold

    return draw


def expected(variant, p, x, mask):
    """Rounded to float and then to x's type, as the kernels do; 0 where dropped, also for an infinity."""
    import torch

    scale = torch.tensor(Keep(p, bits_of(variant)).scale, device=x.device, dtype=torch.float32)
    return torch.where(mask, (x.float() * scale).to(x.dtype), 0)


def run(launch, placed, variant, x, p=0.1, seed=1, call=2, offsets=(0, 0)):
    """y and the mask (bool) for x; fails if the mask has a wrong form, or if anything around them is written."""
    import torch

    n, dtype = x.numel(), str(x.dtype)[6:]
    y = placed(n, dtype, offsets[0])
    declared = OP.tensors(OP.variants[variant])[1][1]
    kept = placed(declared.shapes({"N": n})[0], declared.dtype, offsets[1])
    tensors = {"x": x, "call": torch.tensor([call], device="cuda"), "y": y, declared.name: kept}
    launch("dropout", variant, dtype, {"N": n, "p": p}, seed=seed, **tensors)
    if declared.name == "mask":
        assert bool((kept.tensor.view(torch.uint8) <= 1).all())
        return y.tensor, kept.tensor
    mask = unpack(kept.tensor, n)
    assert torch.equal(pack(mask), kept.tensor), "bits past the last element"
    return y.tensor, mask


@pytest.fixture
def run_and_check(launch, placed, drawn):
    import torch

    def check_one(variant, x, p=0.1, seed=1, call=2, offsets=(0, 0)):
        y, mask = run(launch, placed, variant, x, p, seed, call, offsets)
        assert torch.equal(mask, drawn(variant, p, seed, call, 0, x.numel()))
        torch.testing.assert_close(y, expected(variant, p, x, mask), rtol=0, atol=0, equal_nan=True)

    return check_one


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_sizes(run_and_check, normal, variant, dtype):
    for n in SIZES:
        run_and_check(variant, normal(n, dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_seeds_calls_and_probabilities(run_and_check, normal, variant):
    x = normal(1000, "float16")
    for p in PROBABILITIES:
        for seed, call in [(0, 0), (2**32 + 5, 1), (7, 2**32 + 3), (2**63 - 1, 2**63 - 1)]:
            run_and_check(variant, x, p, seed, call)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(run_and_check, normal, variant, dtype):
    for n in (1, 300, 1027):
        for x_offset, *offsets in [(1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 5, 2), (4, 4, 4), (8, 8, 1)]:
            run_and_check(variant, normal(n, dtype, x_offset), offsets=offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_special_values(run_and_check, special, variant, dtype):
    run_and_check(variant, special(dtype).repeat(90), p=0.5)


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, normal, drawn, variant):
    import torch

    n = 2**31 + 259
    x = normal(n, "float16")
    y = torch.full_like(x, math.nan)
    declared = OP.tensors(OP.variants[variant])[1][1]
    kept = torch.zeros(declared.shapes({"N": n})[0], device="cuda", dtype=getattr(torch, declared.dtype))
    call = torch.tensor([4], device="cuda")
    launch("dropout", variant, "float16", {"N": n, "p": 0.1}, seed=3, x=x, call=call, y=y, **{declared.name: kept})
    # Slices at the start, around 2**31 and at the end stand for the rest.
    for begin in (0, 2**31 - 2**16, n - n % 32 - 2**12):
        end = min(begin + 2**17, n)
        mask = drawn(variant, 0.1, 3, 4, begin, end)
        got = kept[begin:end] if declared.name == "mask" else unpack(kept[begin // 32 : -(-end // 32)], end - begin)
        assert torch.equal(got, mask), begin
        assert torch.equal(y[begin:end], expected(variant, 0.1, x[begin:end], mask)), begin
    assert not bool(y.isnan().any())


@pytest.mark.gpu
def test_the_call_is_read_when_the_kernel_runs(trial, replay):
    """So that a captured graph draws new numbers when the number of the call is advanced in memory."""
    import torch

    x = torch.ones(4096, device="cuda")
    call, stream = torch.tensor([0], device="cuda"), torch.cuda.Stream()
    y, kept = torch.empty_like(x), torch.empty(128, device="cuda", dtype=torch.int32)
    call_once = OP.variants["tuned"].prepare(trial("dropout", "tuned", "float32", "cuda", seed=1, N=4096, p=0.1).ctx)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call_once(SimpleNamespace(x=x, call=call, y=y, bits=kept))
        call.add_(1)
    for number in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(unpack(kept, 4096), replay(0.1, NARROW, 1, number, 0, 4096))


# Statistics, on masks of 2**27 elements.


@pytest.fixture(scope="module")
def draw(launch):
    """draw(variant, seed, call) gives y for ones in float32, and the mask (bool)."""
    import torch

    def call_once(variant, seed=11, call=5):
        x = torch.ones(BIG, device="cuda")
        tensors = {"x": x, "call": torch.tensor([call], device="cuda"), "y": torch.empty_like(x)}
        declared = OP.tensors(OP.variants[variant])[1][1]
        kept = torch.empty(declared.shapes({"N": BIG})[0], device="cuda", dtype=getattr(torch, declared.dtype))
        launch("dropout", variant, "float32", {"N": BIG, "p": 0.1}, seed=seed, **tensors, **{declared.name: kept})
        return tensors["y"], kept if declared.name == "mask" else unpack(kept, BIG)

    return call_once


def probability(variant):
    return Keep(0.1, bits_of(variant)).probability


def density_z(mask, p):
    """Standard deviations by which the share of kept elements is off."""
    n = mask.numel()
    return (int(mask.sum()) - n * p) / math.sqrt(n * p * (1 - p))


def correlation_z(a, b, p):
    """Standard deviations by which the covariance of two masks is off 0."""
    n, both, one, other = a.numel(), int((a & b).sum()), int(a.sum()), int(b.sum())
    return (both - p * (one + other) + n * p * p) / (math.sqrt(n) * p * (1 - p))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["bitmask_shuffle", "tuned"])
def test_the_mean_stays_and_no_position_is_favoured(draw, variant):
    y, mask = draw(variant)
    p = probability(variant)
    sigma = math.sqrt((1 - p) / p / BIG)
    assert abs(float(y.double().mean()) - 1) < SIGMAS * sigma
    assert abs(density_z(mask, p)) < SIGMAS
    # Positions in a Philox call, a mask byte and a word, and two that share a word of the generator.
    for position in range(32):
        assert abs(density_z(mask.view(-1, 32)[:, position], p)) < SIGMAS, position


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["bitmask_shuffle", "tuned"])
def test_neighbours_and_positions_are_independent(draw, variant):
    _, mask = draw(variant)
    p = probability(variant)
    for lag in (1, 2, 4, 8, 32, 256):
        assert abs(correlation_z(mask[:-lag], mask[lag:], p)) < SIGMAS, lag
    of_byte = mask.view(-1, 8)
    for one in range(8):
        for other in range(one + 1, 8):
            assert abs(correlation_z(of_byte[:, one], of_byte[:, other], p)) < SIGMAS, (one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["naive", "tuned"])
def test_two_layers_with_one_seed_and_call_draw_one_mask(launch, placed, normal, variant):
    """As documented: what is dropped doesn't depend on what it is."""
    import torch

    masks = [run(launch, placed, variant, normal(5000, "float32", seed=s), seed=7, call=3)[1] for s in (1, 2)]
    assert torch.equal(*masks)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["bitmask_shuffle", "tuned"])
def test_calls_and_seeds_are_independent(draw, variant):
    _, mask = draw(variant)
    p = probability(variant)
    for seed, call in [(11, 6), (12, 5), (11, 5 + 2**32), (11 + 2**32, 5)]:
        _, other = draw(variant, seed, call)
        assert abs(correlation_z(mask, other, p)) < SIGMAS, (seed, call)


# Without a GPU.


def test_naive_uses_every_number_of_the_stream_once():
    import torch

    assert torch.equal(place_of("naive", torch.arange(4096)).sort().values, torch.arange(4096))
    assert place_of("naive", torch.tensor([0, 256, 512, 1023, 1024])).tolist() == [0, 1, 2, 1023, 1024]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_torch_passes_the_check(trial, dtype, p):
    assert trial("dropout", "eager", dtype, N=10_001, p=p).complaint_after_call() is None


@one_test(
    ("name", "p", "returned"),
    [("dropout", 0.0, "x"), ("dropout_add", 1.0, "addend"), ("bias_dropout_residual", 1.0, "residual")],
)
@one_test("variant", MODES)
def test_compiled_code_that_returns_its_input_is_not_run(name, p, returned, variant):
    op = Catalogue()[name]

    def reason(share):
        shape = tuple((symbol, 8) for symbol in op.symbols)
        return op.variants[variant].unsupported(Case(name, variant, "float32", shape, (("p", share),)))

    assert f"returns {returned} itself" in reason(p)
    assert [reason(share) for share in (0.1, 0.5, 1 - p)] == [None] * 3


@pytest.fixture
def played(trial, replay):
    """A complaint about what `tuned` or `bitmask_match` would write, by their bits, after `change` to the outputs."""
    import torch

    def complaint(p, bits, change=lambda _: None, dtype="float32"):
        ours = trial("dropout", {NARROW: "tuned", WIDE: "bitmask_match"}[bits], dtype, N=1001, p=p)
        mask = replay(p, bits, 1, 2, 0, 1001, "cpu")
        y = torch.where(mask, ours.inputs.x.float() * Keep(p, bits).scale, 0).to(ours.ctx.dtype)
        outputs = SimpleNamespace(y=y, bits=pack(mask))
        change(outputs)
        return ours.complaint(**vars(outputs))

    return complaint


@one_test(
    ("p", "bits", "threshold"),
    [
        (0.1, NARROW, 58982),
        (0.1, WIDE, 15099494),
        (0.5, NARROW, 2**15),
        (0.5, WIDE, 2**23),
        (0, WIDE, 2**24),
        (1, WIDE, 0),
    ],
)
def test_the_threshold_is_the_nearest_to_the_share_that_is_kept(p, bits, threshold):
    keep = Keep(p, bits)
    assert keep.threshold == threshold
    assert keep.scale == (2**bits / threshold if threshold else 0)


@one_test("bits", [NARROW, WIDE])
@one_test("p", [*PROBABILITIES, 0.9, 0.99])
def test_a_rounded_probability_passes_the_check(played, dtype, p, bits):
    assert played(p, bits, dtype=dtype) is None


def test_the_check_sees_a_scale_that_is_not_that_of_the_rounded_probability(played):
    """1 / (1 - p) in place of 2^16 / threshold is 7e-6 off at p = 0.1."""
    complaint = played(0.1, NARROW, lambda t: t.y.mul_(1 / 0.9 / Keep(0.1, NARROW).scale))
    assert "y: 9" in complaint
    assert "of 1001 elements are wrong" in complaint


def test_the_check_sees_a_wrong_value_a_stray_bit_and_a_wrong_share(played):
    import torch

    def one_value(t):
        t.y[500] += 1

    def stray_bit(t):
        t.bits[-1] |= 1 << 30

    def too_many(t):
        t.bits.copy_(pack(torch.ones(1001, dtype=torch.bool)))

    assert "y: 1 of 1001 elements are wrong by up to 1; element 500" in played(0.1, NARROW, one_value)
    assert played(0.1, NARROW, stray_bit) == "bits: some are set past the last element"
    assert "1001 of 1001 elements are kept" in played(0.1, NARROW, too_many)


def test_the_check_sees_bytes_that_no_kernel_wrote(trial):
    untouched = trial("dropout", "vectorized", "float32", N=100, p=0.1)
    poison = check.make_outputs(untouched.ctx, OP.variants["vectorized"])
    assert untouched.complaint(**vars(poison)) == "mask: has bytes other than 0 and 1"
