"""Plans of our product in int8: legal on every GPU that is known, and right on the one that is here."""

from __future__ import annotations

import itertools

import pytest

from harness.collection.ops.gemm import _int8_plan
from harness.collection.ops.gemm._int8_plan import TUNING
from harness.collection.ops.gemm.int8_linear import OP
from harness.cuda.assumed import KNOWN, assuming
from harness.model import Case
from harness.tune.candidates import legal_plans
from tests.one_test import one_test

ROWS, DEPTHS, COLUMNS = (1, 2, 15, 16, 17, 33, 777), (1, 31, 33, 96, 1000, 4096), (1, 7, 8, 1000)
LARGE = [(8192, 4096, 28672), (401_408, 128, 384), (6272, 1024, 3072), (64, 14_336, 4096)]
EVERY = [*itertools.product(ROWS, DEPTHS, COLUMNS), *LARGE]


def case_of(m, k, n, scales="channel"):
    return Case("int8_linear", "fused", "float16", (("M", m), ("K", k), ("N", n)), (("scales", scales),))


@one_test("arch", KNOWN)
def test_the_rules_plan_can_be_launched_on_every_gpu(arch):
    gpu = KNOWN[arch]
    with assuming(gpu):
        for sizes in EVERY:
            case = case_of(*sizes)
            plan = TUNING.rule(case)
            made = _int8_plan._made(case, plan)
            assert made.shared(whole=False) <= gpu.shared  # y may lie at any address
            assert made.static <= 48 * 1024 if made.few else made.number("split") <= 8
            assert gpu.clusters or made.number("split") == 1
            assert TUNING.obstacle(case, plan) is None


def test_few_rows_stream_the_weight_over_all_multiprocessors():
    with assuming(KNOWN["sm_90"]):
        for m, k, n in itertools.product((1, 8, 16), (4096, 14_336), (1000, 4096, 28_672)):
            case = case_of(m, k, n)
            made = _int8_plan._made(case, TUNING.rule(case))
            assert made.few
            started = -(-n // made.tile[1]) * made.number("split")
            assert started > 0.9 * KNOWN["sm_90"].multiprocessors


def test_small_results_are_shared_by_clusters_and_large_ones_are_not():
    with assuming(KNOWN["sm_90"]):
        assert TUNING.rule(case_of(64, 14_336, 4096))["split"] > 1
        assert TUNING.rule(case_of(8192, 4096, 28_672))["split"] == 1
        assert TUNING.rule(case_of(8192, 4096, 28_672))["tile"] == "128x256"


@one_test(("columns", "copy"), [(4096, 16), (1000, 8), (1004, 4), (1001, 1), (1, 1)])
def test_copies_are_as_wide_as_rows_allow(columns, copy):
    assert _int8_plan.copy_bytes(columns) == copy


@one_test("sizes", [(8, 4096, 4096), (24, 1000, 1000), (777, 4096, 1000), (8192, 1024, 3072)])
def test_the_rules_plan_is_among_those_that_are_searched(sizes):
    with assuming(KNOWN["sm_90"]):
        case = case_of(*sizes)
        found = list(legal_plans(TUNING, case))
        assert dict(TUNING.rule(case)) in found
        assert 10 < len(found) < 500
        for plan in found:
            (built,) = TUNING.kernels(case, plan)
            assert built.shared <= KNOWN["sm_90"].shared
            assert built.threads <= 512


def test_rows_that_begin_at_any_byte_have_one_plan_of_tiles():
    with assuming(KNOWN["sm_90"]):
        assert len(list(legal_plans(TUNING, case_of(64, 1001, 1000)))) == 1


def test_a_tile_number_needs_32_bits():
    assert OP.variants["fused"].unsupported(case_of(2**30, 16, 2**11)) is None
    assert "in 32 bits" in OP.variants["fused"].unsupported(case_of(2**31, 16, 2**11))
    assert "in 32 bits" in OP.variants["fused"].unsupported(case_of(1, 2**31, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("m", ROWS)
@pytest.mark.parametrize("scales", ["tensor", "channel", "token"])
def test_every_size_is_right(normal_int8, scales, m):
    for k, n in itertools.product(DEPTHS, COLUMNS):
        assert normal_int8(m, k, n, scales) is None, (k, n)


@pytest.mark.gpu
@pytest.mark.parametrize("offsets", [{"x": 1}, {"weight": 3, "y": 1}, {"x": 8, "weight": 4}, {"weight_scale": 1}])
def test_tensors_may_lie_anywhere(normal_int8, offsets):
    for m, k, n in ((3, 1024, 72), (300, 1024, 72), (300, 1000, 1000), (300, 4096, 392)):
        assert normal_int8(m, k, n, "channel", offsets) is None, (m, k, n)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(5, 2000, 300), (24, 4096, 264), (300, 1040, 1000), (129, 1000, 257)])
def test_every_plan_that_may_be_searched_is_right(normal_int8, monkeypatch, sizes):
    case = case_of(*sizes)
    for plan in list(legal_plans(TUNING, case))[::7]:
        monkeypatch.setattr(_int8_plan, "_ruled", lambda *_, plan=plan: plan)
        assert normal_int8(*sizes, "channel") is None, plan


@pytest.mark.gpu
@pytest.mark.large
def test_more_than_2_to_31_elements(normal_int8):
    assert normal_int8(2**21 + 3, 1040, 16, "channel") is None
    assert normal_int8(2**20 + 3, 16, 2056, "tensor") is None


@pytest.fixture
def normal_int8(catalogue, placed):
    """normal_int8(m, k, n, scales, offsets): what is wrong with y of random integers; None if each element is exact."""
    import torch

    from harness.ops import Context, Tensors

    def complaint(m, k, n, scales, offsets=None):
        generator = torch.Generator("cuda").manual_seed(m + k + n)
        ctx = Context(
            case_of(m, k, n, scales), torch.float16, torch.device("cuda"), generator, catalogue["int8_linear"]
        )
        t = {
            "x": torch.randint(-128, 128, (m, k), generator=generator, device="cuda", dtype=torch.int8),
            "weight": torch.randint(-128, 128, (n, k), generator=generator, device="cuda", dtype=torch.int8),
            "weight_scale": torch.rand(1 if scales == "tensor" else n, generator=generator, device="cuda") / 2**12,
        }
        at = {name: shifted(value, (offsets or {}).get(name, 0)) for name, value in t.items()}
        y = placed((m, n), "float16", (offsets or {}).get("y", 0))
        x_scale = torch.linspace(0.3, 0.2, m if scales == "token" else 1, device="cuda")
        OP.variants["fused"].prepare(ctx)(Tensors(**at, x_scale=x_scale, y=y.tensor))
        torch.cuda.synchronize()
        y.assert_untouched_around()
        for first in range(0, m, 2**16):
            here = slice(first, first + 2**16)
            factors = (x_scale[here] if scales == "token" else x_scale).unsqueeze(1) * t["weight_scale"]
            want = ((t["x"][here].double() @ t["weight"].double().t()).float() * factors).half()
            if not torch.equal(y.tensor[here], want):
                return f"{int((y.tensor[here] != want).sum())} elements from row {first} on are wrong"
        return None

    return complaint


def shifted(tensor, offset):
    """A copy that begins `offset` elements past 16 bytes."""
    import torch

    room = torch.empty(tensor.numel() + offset, dtype=tensor.dtype, device=tensor.device)
    return room[offset:].view(tensor.shape).copy_(tensor)
