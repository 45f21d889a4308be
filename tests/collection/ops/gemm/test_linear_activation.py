"""Linear layers and their activations: our kernel, cuBLASLt's epilogues and torch's, against the reference."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harness import check as checks
from harness.collection.ops.gemm.linear_activation import OP
from harness.cuda import cublaslt
from harness.model import Case
from tests.collection.ops.gemm.conftest import refused

# Rows of whole packs, other rows, and from 2^31 elements on.
COMPILED = [
    {"M": m, "K": 32, "N": n, "activation": activation}
    for m, n in ((64, 64), (64, 65), (2**25, 64))
    for activation in ("gelu", "relu")
]
OURS = ["separate", "epilogue", "tuned"]
ACTIVATIONS = ["gelu", "relu"]
SHAPES = [
    (1, 1, 1),
    (1, 8, 1),
    (3, 5, 7),
    (17, 33, 65),
    (128, 96, 97),
    (1000, 128, 512),
    (333, 512, 2048),
    (257, 768, 3072),
]


def sizes_of(shape, activation):
    return dict(zip("MKN", shape, strict=True)) | {"activation": activation}


def unsupported(variant, dtype, shape, activation="gelu"):
    sizes = tuple(zip("MKN", shape, strict=True))
    return OP.variants[variant].unsupported(
        Case("linear_activation", variant, dtype, sizes, (("activation", activation),))
    )


def by_erf(value):
    return value * 0.5 * (1 + (value / math.sqrt(2)).erf())


def by_tanh(value):
    return value * 0.5 * (1 + (math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)).tanh())


def check(launch, placed, trial, variant, dtype, shape, activation, offset=0):
    if OP.variants[variant].unsupported and unsupported(variant, dtype, shape, activation):
        return
    sizes = sizes_of(shape, activation)
    this = trial("linear_activation", variant, dtype, "cuda", **sizes)
    given = {name: placed(value.shape, dtype, offset) for name, value in vars(this.inputs).items()}
    for name, value in vars(this.inputs).items():
        given[name].tensor.copy_(value)
    y = placed((shape[0], shape[2]), dtype, offset)
    after = launch("linear_activation", variant, dtype, sizes, y=y, **given)
    # Where torch has no epilogue for a shape, it rounds the product before the activation, as a library may.
    made = checks.merged(this.inputs, SimpleNamespace(y=after.y))
    assert checks.verdict(this.ctx, OP.variants[variant], this.inputs, made).wrong is None, shape


@pytest.fixture
def with_cublaslt():
    if reason := cublaslt.missing():
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", [*OURS, "addmm_activation"])
def test_shapes(launch, placed, trial, variant, dtype, activation):
    for shape in SHAPES:
        check(launch, placed, trial, variant, dtype, shape, activation)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, trial, variant, dtype, activation):
    for shape in ((33, 40, 64), (9, 41, 65)):
        for offset in (1, 4, 8):
            with refused(offset):
                check(launch, placed, trial, variant, dtype, shape, activation, offset)


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("variant", [*OURS, "addmm_activation"])
def test_gelu_is_the_formula_with_tanh(launch, placed, variant):
    """On numbers that the product leaves as they are: how much of the way from the one formula to the other y lies."""
    import torch

    z = torch.linspace(-4, 4, 4096, device="cuda").view(-1, 1)
    one, zero = torch.ones(1, 1, device="cuda"), torch.zeros(1, device="cuda")
    sizes = sizes_of((4096, 1, 1), "gelu")
    y = launch("linear_activation", variant, "float32", sizes, x=z, weight=one, bias=zero, y=torch.empty_like(z)).y
    tanh, erf = by_tanh(z.double()), by_erf(z.double())
    # An instruction for tanh may be as far off as the formulas are apart, but not in the same places.
    assert abs(float(((y - tanh) * (erf - tanh)).sum() / (erf - tanh).square().sum())) < 0.3
    if variant == "separate":
        assert (y - tanh).abs().max() < 2e-6


@pytest.mark.gpu
@pytest.mark.usefixtures("with_cublaslt")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numbers_that_are_not_finite_end_as_in_torch(launch, placed, special, dtype, activation):
    """Our kernel's; y is the sum already, so the product adds zero."""
    import torch

    z = special(dtype)
    n = z.numel()
    x = torch.zeros(64, 8, device="cuda", dtype=z.dtype)
    weight = torch.zeros(n, 8, device="cuda", dtype=z.dtype)
    sizes = sizes_of((64, 8, n), activation)
    y = launch("linear_activation", "separate", dtype, sizes, x=x, weight=weight, bias=z, y=x.new_empty(64, n)).y
    functional = torch.nn.functional
    want = functional.relu(z) if activation == "relu" else functional.gelu(z, approximate="tanh")
    torch.testing.assert_close(y, want.expand(64, n), equal_nan=True, rtol=2e-2, atol=1e-3)


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
    launch("linear_activation", variant, "float16", sizes_of((m, k, n), "gelu"), x=x, weight=weight, bias=bias, y=y)
    for first in (0, 2**20 - 50, m - 100):
        part = slice(first, first + 100)
        this = trial("linear_activation", "eager", "float16", "cuda", M=100, K=k, N=n)
        vars(this.inputs).update(x=x[part], weight=weight, bias=bias)
        assert this.complaint(y=y[part]) is None
    assert not bool(y.isnan().any())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", ["eager", "compile"])
def test_baselines_agree_with_the_reference_on_the_cpu(trial, dtype, variant, activation):
    assert (
        trial("linear_activation", variant, dtype, M=100, K=33, N=17, activation=activation).complaint_after_call()
        is None
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_forgotten_activation_bias_or_term_is_wrong(trial, dtype, activation):
    import torch

    this = trial("linear_activation", "eager", dtype, M=64, K=512, N=32, activation=activation)
    t, linear = this.inputs, torch.nn.functional.linear
    apply = torch.relu if activation == "relu" else by_tanh
    right = linear(t.x, t.weight, t.bias)
    assert this.complaint(y=apply(right)) is None
    other = by_tanh if activation == "relu" else torch.relu
    for wrong in (
        right,
        apply(right - t.bias),
        apply(linear(t.x[:, 1:], t.weight[:, 1:], t.bias)),
        apply(right) * 1.02,
        other(right),
    ):
        assert "elements are wrong" in this.complaint(y=wrong)


def test_gelu_by_erf_is_within_what_a_gpus_tanh_may_be_off(trial):
    """So the check can't tell the two; test_gelu_is_the_formula_with_tanh does."""
    import torch

    this = trial("linear_activation", "eager", "float32", M=64, K=4, N=32)
    t = this.inputs
    value = torch.nn.functional.linear(t.x, t.weight, t.bias)
    assert (by_erf(value) - by_tanh(value)).abs().max() > 3e-4
    assert this.complaint(y=by_tanh(value)) is None


def test_a_half_product_that_is_rounded_before_the_activation_is_right(trial, dtype):
    this = trial("linear_activation", "separate", dtype, M=100, K=64, N=48)
    t = this.inputs
    rounded = (t.x @ t.weight.t()) + t.bias
    assert this.complaint(y=by_tanh(rounded.float()).to(rounded.dtype)) is None


def test_work_and_traffic_at_a_layer_of_bert():
    sizes = {"M": 16384, "K": 768, "N": 3072, "activation": "gelu"}
    work = OP.work_of(sizes, "float16")
    assert (work.read, work.written) == (2 * (16384 * 768 + 3072 * 768 + 3072), 2 * 16384 * 3072)
    assert work.flops == (("float16", 2 * 16384 * 768 * 3072),)
    moved = {name: OP.traffic_of(variant, sizes, "float16").moved for name, variant in OP.variants.items()}
    assert moved["separate"] == moved["eager"] == work.moved + 2 * work.written
    assert moved["epilogue"] == moved["tuned"] == moved["addmm_activation"] == work.moved


def test_without_nvmath_only_torch_runs(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = [name for name, variant in OP.variants.items() if variant.unsupported]
    assert refused == OURS
    assert all("nvmath-python" in unsupported(name, "float16", (8, 8, 8)) for name in refused)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("variant", ["epilogue", "tuned"])
def test_the_activation_is_cublaslts_to_apply(lt, launch_on_cpu, variant, activation):
    sizes = {"M": 5, "K": 7, "N": 3, "activation": activation}
    t = launch_on_cpu(OP, variant, "float32", sizes)
    descriptor, *_ = lt.described(lt.multiplied[-1])
    assert descriptor["EPILOGUE"] == lt.Epilogue[f"{activation.upper()}_BIAS"]
    assert lt.multiplied[-1]["bias"] == t.bias.data_ptr()
    assert lt.multiplied[-1]["algorithm"] == (3 if variant == "tuned" else 0)


def test_torchs_own_epilogue_takes_the_choice(trial):
    """On a CPU ReLU is the same function, and GELU the one by erf, so the variant is for GPUs."""
    import torch

    relu = trial("linear_activation", "addmm_activation", "float32", M=64, K=32, N=48, activation="relu")
    assert relu.complaint_after_call() is None
    gelu = trial("linear_activation", "addmm_activation", "float32", M=64, K=32, N=48, activation="gelu")
    t = gelu.inputs
    torch.testing.assert_close(gelu.call().y, by_erf(torch.nn.functional.linear(t.x, t.weight, t.bias)))
    assert OP.variants["addmm_activation"].devices == ("cuda",)
