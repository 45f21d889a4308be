"""Linear layers in int8: the kernel that scales sums, cuBLASLt's products, and what quantising costs."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.gemm import _int8
from harness.collection.ops.gemm.int8_linear import OP
from harness.cuda import cublaslt
from harness.model import Case
from tests.one_test import one_test

# Rows that are multiples of 8, of 4, and other rows. Of `fused`: few rows and tiles of each size, with copies of each
# width, alone and in clusters.
COMPILED = [
    *({"M": 64, "K": 32, "N": n, "scales": scales} for n in (64, 36, 33) for scales in ("tensor", "channel")),
    *({"M": m, "K": 4096, "N": n, "scales": "token"} for m, n in ((8, 1000), (64, 33), (6272, 384))),
    *({"M": m, "K": k, "N": 1000, "scales": "channel"} for m in (8, 16, 64) for k in (4096, 1000, 1004, 1001)),
    *({"M": m, "K": k, "N": 28_672, "scales": "channel"} for m in (1, 16) for k in (128, 4096, 1004)),
    *({"M": m, "K": k, "N": 384, "scales": "channel"} for m in (777, 6272, 25_088, 401_408) for k in (128, 1000, 1004)),
]
LT = ["int32_out", "int32_out_col4", "int32_out_col32", "int8_out", "tuned"]
SCALES = ["tensor", "channel", "token"]
SHAPES = [(17, 16, 8), (33, 32, 96), (64, 96, 100), (1000, 128, 384), (333, 512, 1536), (49, 3072, 768)]


def case_of(variant, shape, scales="tensor", device="cuda"):
    choices = (("scales", scales), ("data", "normal"))
    return Case("int8_linear", variant, "float16", tuple(zip("MKN", shape, strict=True)), choices, device=device)


def plain(t, y=None):
    """The arithmetic of the variants in plain torch: exact sums, scaled in float32, then rounded."""
    ((_, sums),) = _int8.products(t.x, t.weight)
    scales = t.x_scale.unsqueeze(1) * t.weight_scale
    if y == "int8":
        return _int8.rounded(sums.float() * (scales / t.y_scale)).float() * t.y_scale
    return (sums.float() * scales).half()


@pytest.fixture
def with_cublaslt():
    if reason := cublaslt.missing():
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", LT)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("data", ["normal", "outliers"])
def test_shapes(trial, variant, scales, data):
    import torch

    from harness import check

    for shape in SHAPES:
        if OP.variants[variant].unsupported(case_of(variant, shape, scales)):
            continue
        sizes = dict(zip("MKN", shape, strict=True))
        this = trial("int8_linear", variant, "float16", "cuda", scales=scales, data=data, **sizes)
        chosen = OP.variants[variant]
        t = check.merged(this.inputs, check.make_outputs(this.ctx, chosen))
        t = check.merged(t, type(t)(**(chosen.encode(this.ctx, t) if chosen.encode else {})))
        chosen.prepare(this.ctx)(t)
        torch.cuda.synchronize()
        assert check.complaint(this.ctx, chosen, this.inputs, t) is None, shape
        assert this.ctx.facts["snr"] > 10


@pytest.mark.gpu
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("n", [64, 36, 33])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_kernel_scales_every_sum(catalogue, placed, scales, n, offset):
    """Without cuBLASLt: sums of all sizes, -2^31 too, at aligned and other addresses, and nothing around y."""
    import torch

    from harness.collection.ops.gemm.int8_linear import _dequantiser
    from harness.ops import Context, Tensors

    for m in (1, 17, 1000):
        case = Case("int8_linear", "int32_out", "float16", (("M", m), ("K", 8), ("N", n)), (("scales", scales),))
        ctx = Context(case, torch.float16, torch.device("cuda"), torch.Generator("cuda"), catalogue["int8_linear"])
        sums = torch.randint(-(2**20), 2**20, (m, n), device="cuda", dtype=torch.int32)
        sums.view(-1)[0] = -(2**31)
        weight_scale = torch.rand(1 if scales == "tensor" else n, device="cuda") / 2**16
        x_scale, y = torch.rand(m if scales == "token" else 1, device="cuda"), placed((m, n), "float16", offset)
        t = Tensors(x_scale=x_scale, weight_scale=weight_scale, y=y.tensor)
        _dequantiser(ctx, by_32=False)(sums, t)
        torch.cuda.synchronize()
        want = (sums.float() * (x_scale.unsqueeze(1) * weight_scale)).half()
        torch.testing.assert_close(y.tensor, want, rtol=0, atol=0)
        y.assert_untouched_around()


@pytest.mark.gpu
@pytest.mark.parametrize("scales", SCALES)
def test_the_kernel_reads_cublaslts_order_of_32_columns(catalogue, placed, scales):
    import torch

    from harness.collection.ops.gemm.int8_linear import _dequantiser
    from harness.ops import Context, Tensors

    m, n = 37, 96
    case = Case("int8_linear", "int32_out_col4", "float16", (("M", m), ("K", 32), ("N", n)), (("scales", scales),))
    ctx = Context(case, torch.float16, torch.device("cuda"), torch.Generator("cuda"), catalogue["int8_linear"])
    sums = torch.randint(-1000, 1000, (m, n), device="cuda", dtype=torch.int32)
    weight_scale = torch.rand(1 if scales == "tensor" else n, device="cuda")
    x_scale = torch.ones(m if scales == "token" else 1, device="cuda")
    t = Tensors(x_scale=x_scale, weight_scale=weight_scale, y=placed((m, n), "float16").tensor)
    _dequantiser(ctx, by_32=True)(sums.view(m, n // 32, 32).transpose(0, 1).contiguous(), t)
    torch.testing.assert_close(t.y, (sums.float() * weight_scale).half(), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.large
def test_the_kernel_beyond_2_to_31_elements(catalogue):
    import torch

    from harness.collection.ops.gemm.int8_linear import _dequantiser
    from harness.ops import Context, Tensors

    m, n = 2**25 + 3, 64
    case = Case("int8_linear", "int32_out", "float16", (("M", m), ("K", 8), ("N", n)), (("scales", "channel"),))
    ctx = Context(case, torch.float16, torch.device("cuda"), torch.Generator("cuda"), catalogue["int8_linear"])
    sums = torch.randint(-1000, 1000, (m, n), device="cuda", dtype=torch.int32)
    t = Tensors(x_scale=torch.ones(1, device="cuda"), weight_scale=torch.rand(n, device="cuda"))
    for n_of_width in (0, 1):  # the kernel of packs; then, at an address that isn't aligned, the kernel of elements
        buffer = torch.full((m * n + 8,), math.nan, device="cuda", dtype=torch.float16)
        t.y = buffer[n_of_width : n_of_width + m * n].view(m, n)
        _dequantiser(ctx, by_32=False)(sums, t)
        for first in (0, 2**25 - 50, m - 100):
            part = slice(first, first + 100)
            assert torch.equal(t.y[part], (sums[part].float() * t.weight_scale).half())


def test_places_of_cublaslts_order_are_those_of_the_kernel():
    """The kernel's formula, for all elements at once."""
    import torch

    m, n = 5, 96
    ordered = torch.arange(m * n).view(m, n).view(m, n // 32, 32).transpose(0, 1).reshape(-1)
    row, column = torch.arange(m).view(-1, 1), torch.arange(n)
    place = (column // 32 * m + row) * 32 + column % 32
    assert torch.equal(ordered[place], torch.arange(m * n).view(m, n))


@pytest.mark.slow  # ops/test_every_op.py compares each baseline
@one_test("scales", SCALES)
@one_test("data", ["normal", "outliers"])
def test_baselines_agree_with_the_reference_on_the_cpu(trial, scales, data):
    for variant in ("eager", "compile"):
        this = trial("int8_linear", variant, "float16", M=100, K=40, N=24, scales=scales, data=data)
        assert this.complaint_after_call() is None
        assert set(this.ctx.facts) >= {"snr", "mean_error", "largest_error"}


@pytest.mark.parametrize("scales", SCALES)
def test_each_output_is_held_to_its_own_rounding(trial, scales):
    for variant, kind in [("int32_out", None), ("int8_out", "int8"), ("tuned", "int8")]:
        if kind and scales == "token":
            continue
        this = trial("int8_linear", variant, "float16", M=64, K=128, N=48, scales=scales)
        y = plain(this.inputs, kind)
        decode = OP.variants[variant].decode
        written = {"y": y} if decode is None else {"q": (y / this.inputs.y_scale).round().to(_int8_type())}
        assert this.complaint(**written) is None
        spoiled = {name: value.clone() for name, value in written.items()}
        for value in spoiled.values():
            value[3, 5] += 1 if kind else 0.05
        assert "1 of 3072 elements are wrong" in this.complaint(**spoiled)
    # What would be right for int8 isn't for float16.
    assert "elements are wrong" in trial("int8_linear", "int32_out", "float16", M=64, K=128, N=48).complaint(y=y.half())


def _int8_type():
    import torch

    return torch.int8


def test_float16_multiplies_the_real_numbers(trial):
    import torch

    this = trial("int8_linear", "float16", "float16", M=64, K=256, N=48)
    given = OP.variants["float16"].encode(this.ctx, this.inputs)
    y = torch.nn.functional.linear(given["x"].float(), given["weight"].float()).half()
    assert this.complaint(y=y) is None
    assert this.ctx.facts["snr"] > 60
    assert "elements are wrong" in this.complaint(y=plain(this.inputs))


def figures(trial, kind=None, variant="int32_out", **chosen):
    this = trial("int8_linear", variant, "float16", M=512, K=384, N=256, **chosen)
    if kind:
        assert this.complaint(q=(plain(this.inputs, kind) / this.inputs.y_scale).round().to(_int8_type())) is None
    else:
        assert this.complaint(y=plain(this.inputs)) is None
    return this.ctx.facts


def test_outliers_and_a_second_rounding_cost_accuracy_and_scales_of_channels_gain_some(trial):
    usual = figures(trial)
    assert 35 < usual["snr"] < 45
    assert usual["mean_error"] < usual["largest_error"] < 0.1
    assert figures(trial, scales="token")["snr"] > figures(trial, scales="channel")["snr"] > usual["snr"]
    assert figures(trial, "int8", "int8_out")["snr"] < usual["snr"]
    assert figures(trial, data="outliers")["mean_error"] > 0


def test_the_same_data_is_made_again_for_the_check(trial):
    import torch

    this = trial("int8_linear", "eager", "float16", M=32, K=64, N=16, data="outliers")
    (one, weight), (other, again) = _int8.real(this.ctx), _int8.real(this.ctx)
    assert torch.equal(one, other)
    assert torch.equal(weight, again)
    assert torch.equal(_int8.quantise(one)[0], this.inputs.x)
    sizes = one.std(dim=0)
    assert int((sizes > 10).sum()) == 1


def test_all_choices_of_a_size_have_the_same_numbers(trial):
    """So the error with outliers differs by the outliers alone, and per channel by the scales alone."""
    import torch

    def numbers(**choices):
        return _int8.real(trial("int8_linear", "eager", "float16", M=32, K=64, N=16, **choices).ctx)

    x, weight = numbers(scales="tensor", data="normal")
    for choices in ({"scales": "channel", "data": "normal"}, {"scales": "tensor", "data": "outliers"}):
        other, same = numbers(**choices)
        assert torch.equal(weight, same)
        assert int((x == other).all(dim=0).sum()) == (64 if choices["data"] == "normal" else 63)
    with_outliers = numbers(scales="tensor", data="outliers"), numbers(scales="channel", data="outliers")
    assert torch.equal(with_outliers[0][0], with_outliers[1][0])


@one_test("scales", SCALES)
@one_test("what", ["x", "weight", "row of the weight", "row of x"])
def test_zeros_give_zeros(trial, scales, what):
    import torch

    this = trial("int8_linear", "int32_out", "float16", M=32, K=16, N=24, scales=scales)
    t = this.inputs
    x, weight = torch.randn(32, 16), torch.randn(24, 16)
    zeroed = {"x": x, "weight": weight, "row of the weight": weight[3], "row of x": x[5]}[what]
    zeroed.zero_()
    t.x, t.x_scale = _int8.quantise(x, per_row=scales == "token")
    t.weight, t.weight_scale = _int8.quantise(weight, per_row=scales != "tensor")
    y = plain(t)
    assert not bool(y.isnan().any())
    of_zeros = {"row of the weight": y[:, 3], "row of x": y[5]}.get(what, y)
    assert not bool(of_zeros.any())
    assert this.complaint(y=y) is None
    if scales == "token":
        return
    # An output's scale of 0 takes everything to 0.
    t.y_scale = torch.zeros(1)
    alpha = OP.variants["int8_out"].encode(this.ctx, t)["alpha"]
    assert not bool(alpha.any())


@pytest.mark.parametrize("scales", SCALES)
def test_minus_128_is_a_number_like_any_other(trial, scales):
    import torch

    this = trial("int8_linear", "eager", "float16", M=32, K=64, N=24, scales=scales)
    this.inputs.x[:4], this.inputs.weight[:4] = -128, -128
    assert this.complaint_after_call() is None
    assert torch.equal(this.call().y, plain(this.inputs))


def test_an_output_that_saturates_is_right(trial):
    import torch

    this = trial("int8_linear", "int8_out", "float16", M=32, K=64, N=24)
    t = this.inputs
    t.y_scale = t.y_scale / 4
    q = _int8.rounded(plain(t).float() / t.y_scale)
    assert {127, -128} <= set(q.unique().tolist())
    assert this.complaint(q=q) is None
    wrapped = torch.where(q == 127, -128, q).to(torch.int8)
    assert "elements are wrong" in this.complaint(q=wrapped)


def test_the_work_is_that_of_the_leanest_form():
    values = {"M": 401408, "K": 128, "N": 384, "scales": "tensor", "data": "normal"}
    work = OP.work_of(values, "float16")
    operands, y = 401408 * 128 + 384 * 128, 401408 * 384
    assert (work.read, work.written) == (operands + 12, y)
    assert work.flops == (("int8", 2 * 401408 * 128 * 384),)
    moved = {name: OP.traffic_of(variant, values, "float16").moved for name, variant in OP.variants.items()}
    assert moved["int8_out"] == operands + y + 4
    assert moved["int32_out"] == operands + 10 * y
    assert moved["fused"] == operands + 2 * y + 8
    assert moved["float16"] == 2 * (operands + y)


@pytest.mark.parametrize(
    ("variant", "scales", "alpha"),
    [("int8_out", "tensor", "DEVICE"), ("tuned", "channel", "ALPHA_DEVICE_VECTOR_BETA_ZERO")],
)
def test_the_product_writes_int8_with_the_scales_in_alpha(lt, launch_on_cpu, variant, scales, alpha):
    t = launch_on_cpu(OP, variant, "float16", {"M": 20, "K": 16, "N": 8, "scales": scales})
    descriptor, a, _, d = lt.described(lt.multiplied[-1])
    assert descriptor["POINTER_MODE"] == lt.PointerMode[alpha]
    assert (a["type"], d["type"], lt.multiplied[-1]["alpha"]) == ("CUDA_R_8I", "CUDA_R_8I", t.alpha.data_ptr())
    wanted = t.given.x_scale * t.given.weight_scale / t.given.y_scale
    assert t.alpha.tolist() == pytest.approx(wanted.tolist())
    assert len(t.alpha) == (8 if scales == "channel" else 1)


def test_cublaslt_writes_no_int8_with_a_scale_for_each_row(lt):
    for variant in ("int8_out", "tuned"):
        told = OP.variants[variant].unsupported(case_of(variant, (64, 64, 64), "token"))
        assert told == "cuBLASLt takes no scale for each row of x"
    assert OP.variants["int32_out"].unsupported(case_of("int32_out", (64, 64, 64), "token")) is None


def test_what_cublaslt_refuses_is_told_in_its_words(lt):
    lt.refused = True
    for variant in LT:
        told = OP.variants[variant].unsupported(case_of(variant, (64, 64, 64)))
        assert told == "cuBLASLt: the requested functionality is not supported (CUBLAS_STATUS_NOT_SUPPORTED)"
    assert (
        OP.variants["int32_out_col4"].unsupported(case_of("", (64, 33, 64))) == "for K and N that are multiples of 32"
    )


@pytest.mark.parametrize("order", ["COL4_4R2_8C", "COL32_2R_4R4"])
def test_weights_are_reordered_by_cublaslt_itself(lt, order):
    import torch

    weight = torch.zeros(40, 64, dtype=torch.int8)
    wanted = cublaslt.reordered(weight, cublaslt.Gemm(10, 40, 64, "int8", "int32", order=order))
    said = lt.transformed[-1]
    given, made = lt.objects[said["of_a"]], lt.objects[said["of_c"]]
    assert (given["ORDER"], given["rows"], given["columns"], given["leading"]) == (1, 40, 64, 64)
    assert (made["ORDER"], made["rows"], made["columns"]) == (lt.Order[order], 40, 64)
    assert wanted.numel() == 2 * made["leading"]
    assert (said["factors"], said["a"], said["c"]) == ((1.0, 0.0), weight.data_ptr(), wanted.data_ptr())


@pytest.mark.parametrize("rows", [1, 16, 17])
@pytest.mark.parametrize("scales", SCALES)
def test_torch_gets_seventeen_rows_or_more(rows, scales, trial, monkeypatch):
    import torch

    real, asked = torch._int_mm, []

    def product(x, weight):
        asked.append(x.shape[0])
        return real(x, weight)

    monkeypatch.setattr(torch, "_int_mm", product)
    this = trial("int8_linear", "eager", "float16", M=rows, K=64, N=24, scales=scales)
    assert this.complaint_after_call() is None
    assert asked[-1] == 17


def test_torch_needs_sizes_of_its_own_on_a_gpu():
    refused = OP.variants["eager"].unsupported
    assert refused(case_of("eager", (17, 8, 9))) == "torch._int_mm needs K and N that are multiples of 8"
    assert refused(case_of("eager", (17, 9, 8))) == "torch._int_mm needs K and N that are multiples of 8"
    assert refused(case_of("eager", (1, 8, 8))) is None
    assert refused(case_of("eager", (1, 3, 5), device="cpu")) is None


@one_test("scales", SCALES)
def test_few_rows_wait_for_no_scale_before_the_product(machine_code, scales):
    """Scales of a thread's first sum come with the first part of the weight; the second part isn't held up by them."""
    macros = {"COPY": 16, "ROWS": 8, "TILES": 1, "STEPS": 4, "WARPS": 8, "SPLIT": 1}
    macros |= {"PER_CHANNEL": int(scales != "tensor"), "PER_ROW": int(scales == "token")}
    code = machine_code("int8_linear.cu", macros)["int8_linear_few"]
    kinds = [int.from_bytes(code[at : at + 2], "little") & 0xFFF for at in range(0, len(code), 16)]
    load, product, float_product = 0x981, 0x237, 0x220  # LDG, IMMA, FMUL of sm_90
    before = kinds[: kinds.index(product)]
    assert before.count(load) == 2 + 2 * 4 * 3, (
        "two scales, and two parts of four steps: two rows of the weight, one of x"
    )
    assert float_product not in before
    assert float_product in kinds
