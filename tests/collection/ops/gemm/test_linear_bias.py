"""Linear layers: the kernel that adds a bias, and cuBLASLt's products against the reference."""

from __future__ import annotations

import pytest

from harness.collection.ops.gemm.linear_bias import OP
from harness.cuda import cublaslt
from harness.model import Case
from tests.collection.ops.gemm.conftest import refused

# Rows of whole packs, other rows, and from 2^31 elements on.
COMPILED = [{"M": 64, "K": 32, "N": 64}, {"M": 64, "K": 32, "N": 65}, {"M": 2**25, "K": 32, "N": 64}]
OURS = ["separate", "epilogue", "laid_out", "tuned", "laid_out_tuned"]
SHAPES = [
    (1, 1, 1),
    (1, 8, 1),
    (3, 5, 7),
    (17, 33, 65),
    (49, 96, 288),
    (128, 96, 97),
    (1000, 128, 384),
    (333, 512, 1536),
    (257, 3072, 768),
]


def unsupported(variant, dtype, shape):
    case = Case("linear_bias", variant, dtype, tuple(zip("MKN", shape, strict=True)))
    return OP.variants[variant].unsupported(case)


def check(launch, placed, trial, variant, dtype, shape, offset=0):
    if unsupported(variant, dtype, shape):
        return
    sizes = dict(zip("MKN", shape, strict=True))
    this = trial("linear_bias", variant, dtype, "cuda", **sizes)
    t = this.inputs
    given = {name: placed(value.shape, dtype, offset) for name, value in vars(t).items()}
    for name, value in vars(t).items():
        given[name].tensor.copy_(value)
    if variant.startswith("laid_out"):
        weight = placed(shape[1:], dtype, offset)
        weight.tensor.copy_(t.weight.t())
        given["weight"] = weight
    y = placed((shape[0], shape[2]), dtype, offset)
    launch("linear_bias", variant, dtype, sizes, y=y, **given)
    assert this.complaint(y=y.tensor) is None, shape


@pytest.fixture
def with_cublaslt():
    if reason := cublaslt.missing():
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", OURS)
def test_shapes(launch, placed, trial, variant, dtype):
    for shape in SHAPES:
        check(launch, placed, trial, variant, dtype, shape)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, trial, variant, dtype):
    for shape in ((33, 40, 64), (9, 41, 65)):
        for offset in (1, 4, 8):
            with refused(offset):
                check(launch, placed, trial, variant, dtype, shape, offset)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
def test_a_product_is_captured_into_a_graph(launch, placed, catalogue):
    import torch

    x, weight, bias, y = (placed(shape, "float16").tensor for shape in ((64, 32), (48, 32), (48,), (64, 48)))
    matmul = cublaslt.Matmul(cublaslt.Gemm(64, 48, 32, "float16", "float16", bias=True), 8)
    for tensor in (x, weight, bias):
        tensor.normal_()
    matmul(x, weight, y, bias=bias)
    first, graph = y.clone(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        matmul(x, weight, y, bias=bias)
    y.zero_()
    graph.replay()
    assert torch.equal(y, first)
    matmul.close()


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, trial, variant):
    """Slices at the start, around 2^31 elements and at the end stand for the rest."""
    import torch

    m, k, n = 2**20 + 65, 16, 2048
    x, weight, bias = (torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((m, k), (n, k), (n,)))
    y = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
    given = weight.t().contiguous() if variant.startswith("laid_out") else weight
    launch("linear_bias", variant, "float16", {"M": m, "K": k, "N": n}, x=x, weight=given, bias=bias, y=y)
    for first in (0, 2**20 - 50, m - 100):
        part = slice(first, first + 100)
        this = trial("linear_bias", "eager", "float16", "cuda", M=100, K=k, N=n)
        vars(this.inputs).update(x=x[part], weight=weight, bias=bias)
        assert this.complaint(y=y[part]) is None
    assert not bool(y.isnan().any())


def test_baselines_agree_with_the_reference_on_the_cpu(trial, dtype):
    for variant in ("eager", "compile"):
        assert trial("linear_bias", variant, dtype, M=100, K=33, N=17).complaint_after_call() is None


def test_a_sum_without_one_term_a_bias_or_in_halves_is_wrong(trial, dtype):
    import torch

    this = trial("linear_bias", "eager", dtype, M=64, K=512, N=32)
    t = this.inputs
    right = torch.nn.functional.linear(t.x, t.weight, t.bias)
    assert this.complaint(y=right) is None
    without_a_term = torch.nn.functional.linear(t.x[:, 1:], t.weight[:, 1:], t.bias)
    assert "elements are wrong" in this.complaint(y=without_a_term)
    assert "elements are wrong" in this.complaint(y=right - t.bias)
    assert "elements are wrong" in this.complaint(y=right * 1.02)


@pytest.mark.parametrize("k", [256, 4096])
def test_equal_terms_that_are_added_one_after_another_are_right(trial, k):
    """Where both rows are one number, each addition may be rounded the same way. Other rows have no such bound."""
    import torch

    this = trial("linear_bias", "eager", "float32", M=40, K=k, N=30)
    t = this.inputs
    t.x.copy_(t.x[:, :1].clone().expand_as(t.x))
    t.weight.copy_(t.weight[:, :1].clone().expand_as(t.weight))
    one = t.x[:, :1] * t.weight[:, 0]
    total = torch.zeros_like(one)
    for _ in range(k):
        total += one
    # Nothing else than the bound for equal terms lets this pass.
    assert float(((total.double() / one.double() / k) - 1).abs().max()) > k**0.5 * 2**-23
    assert this.complaint(y=total + t.bias) is None
    exact = one.double() * k
    assert "elements are wrong" in this.complaint(y=(exact * (1 + (k / 4 + 4) * 2**-23) + t.bias).float())


@pytest.mark.parametrize("other", ["x", "weight"])
def test_terms_of_which_one_is_another_number_are_not_equal(trial, other):
    """Both rows must be one number for the larger bound."""
    import torch

    k = 1024
    this = trial("linear_bias", "eager", "float32", M=40, K=k, N=30)
    t = this.inputs
    for rows in (t.x, t.weight):
        rows.copy_(rows[:, :1].clone().expand_as(rows))
    vars(t)[other][:, 1] += 1
    y = torch.nn.functional.linear(t.x.double(), t.weight.double(), t.bias.double()).float()
    assert this.complaint(y=y) is None
    off = k / 6 * 2**-23 * t.x.norm(dim=1)[:, None] * t.weight.norm(dim=1)
    assert "elements are wrong" in this.complaint(y=y + off)


def test_few_equal_terms_have_the_bound_of_other_terms(trial):
    this = trial("linear_bias", "eager", "float32", M=40, K=4, N=30)
    t = this.inputs
    for rows in (t.x, t.weight):
        rows.copy_(rows[:, :1].clone().expand_as(rows))
    exact = 4 * t.x[:, :1].double() * t.weight[:, 0].double()
    assert this.complaint(y=(exact * (1 + 2.4 * 2**-23) + t.bias).float()) is None


def test_a_product_that_is_rounded_before_the_bias_is_added_is_right(trial, dtype):
    this = trial("linear_bias", "separate", dtype, M=100, K=64, N=48)
    t = this.inputs
    assert this.complaint(y=(t.x @ t.weight.t()) + t.bias) is None


def test_work_and_traffic_at_a_layer_of_swin():
    sizes = {"M": 401408, "K": 128, "N": 384}
    work = OP.work_of(sizes, "bfloat16")
    inputs = 2 * (401408 * 128 + 384 * 128 + 384)
    assert (work.read, work.written) == (inputs, 2 * 401408 * 384)
    assert work.flops == (("bfloat16", 2 * 401408 * 128 * 384),)
    moved = {name: OP.traffic_of(variant, sizes, "bfloat16").moved for name, variant in OP.variants.items()}
    assert moved["separate"] - moved["epilogue"] == 2 * work.written
    assert moved["laid_out"] == moved["tuned"] == work.moved


def test_without_nvmath_only_torch_runs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = [name for name, variant in OP.variants.items() if variant.unsupported]
    assert refused == OURS
    assert all("nvmath-python" in unsupported(name, "float16", (8, 8, 8)) for name in refused)


@pytest.mark.parametrize("variant", ["epilogue", "laid_out", "tuned", "laid_out_tuned"])
def test_the_bias_is_cublaslts_to_add(lt, launch_on_cpu, variant):
    import torch

    t = launch_on_cpu(OP, variant, "float32", {"M": 5, "K": 7, "N": 3})
    descriptor, a, *_ = lt.described(lt.multiplied[-1])
    assert descriptor["EPILOGUE"] == lt.Epilogue.BIAS
    assert lt.multiplied[-1]["bias"] == t.bias.data_ptr()
    assert (a["rows"], a["columns"]) == tuple(reversed(t.weight.shape))
    assert torch.equal(t.weight, t.given.weight.t() if variant.startswith("laid_out") else t.given.weight)
    assert lt.multiplied[-1]["algorithm"] == (3 if variant.endswith("tuned") else 0)
