"""All ops of the family: torch's code and the checks on a CPU, and the kernels on a GPU."""

from __future__ import annotations

import itertools

import pytest

from harness.collection.ops.quantise import _tiles
from harness.model import Traffic
from harness.ops import Catalogue
from tests.one_test import one_test
from tests.rare import rare

OPS = Catalogue()
LAYER_NORM = "dequantize_bias_residual_layer_norm_quantize"
FLAT = ["quantize", "dequantize_bias", "dequantize_bias_residual", "dequantize_bias_gelu_quantize"]
NAMES = [*FLAT, LAYER_NORM]
INTEGERS = [name for name in NAMES if name.endswith("quantize")]
OURS = ["separate", "fused", "tuned"]
SCALES = ["tensor", "channel"]
SHAPES = [
    (1, 1),  # one element
    (1, 3),  # fewer elements than a unit
    (1, 4),
    (3, 5),
    (5, 7),
    (333, 1),  # one channel
    (333, 2),
    (333, 3),
    (13, 96),
    (77, 97),  # rows that aren't whole units, many of them
    (65, 98),
    (65, 100),
    (131, 128),
    (67, 192),
    (9, 384),
    (5, 768),
    (409, 768),
    (5, 1000),
    (33, 1023),
    (33, 1024),
    (7, 1536),
    (3, 3072),
    (3, 4095),
    (9, 4096),
    (2, 8191),
    (2, 16384),
    (2, 16388),
    (1, 40001),
]
SMALL = [shape for shape in SHAPES if shape[0] * shape[1] < 8_000]


def sizes(shape, scales="channel"):
    return {"M": shape[0], "C": shape[1], "scales": scales}


def test_the_family_has_these_ops():
    assert set(NAMES) <= set(OPS)


# ---- Torch's code and the checks.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scales", SCALES)
def test_eager_is_right_on_the_cpu(trial, name, scales, dtype):
    for shape in SMALL:
        assert trial(name, "eager", dtype, **sizes(shape, scales)).complaint_after_call() is None, shape


@one_test("name", NAMES)
def test_the_check_takes_empty_tensors(trial, name):
    for shape in ((0, 8), (8, 0), (0, 0)):
        assert trial(name, "eager", "float16", **sizes(shape, "channel")).complaint_after_call() is None, shape


@pytest.mark.slow  # the test above has the eager baseline, ops/test_every_op.py all
@pytest.mark.parametrize("name", ["quantize", "dequantize_bias_residual_layer_norm_quantize"])
def test_compile_is_right_on_the_cpu(trial, name):
    assert trial(name, "compile", "float16", **sizes((7, 96))).complaint_after_call() is None


def expected_values(made):
    """The values that y is rounded from, divided by their scale, in float64; for torch's code in float32."""
    import torch

    t, op = made.inputs, made.ctx.op
    if op.name == "quantize":
        return t.x.double() / t.scale.double()
    sums = t.acc.double() * (t.sx.double() * t.sw.double()) + t.bias.double()
    if op.name == "dequantize_bias_gelu_quantize":
        return torch.nn.functional.gelu(sums) / t.sy.double()
    h = (sums + t.residual.double()).to(made.ctx.dtype).double()
    normal = torch.nn.functional.layer_norm(h, (h.shape[1],), t.gamma.double(), t.beta.double(), 1e-5)
    return normal / t.sy.double()


WRONG = {
    "off by one": lambda values: (values.round() + 1).clamp(-128, 127),
    "one less": lambda values: (values.round() - 1).clamp(-128, 127),
    "cut off": lambda values: values.trunc().clamp(-128, 127),
    "rounded down": lambda values: values.floor().clamp(-128, 127),
    "wraps around": lambda values: (values.round() + 128) % 256 - 128,
    "saturates at -127": lambda values: values.round().clamp(-127, 127),
    "saturates at 126": lambda values: values.round().clamp(-128, 126),
    "the unsigned range": lambda values: values.round().clamp(0, 127),
    "mixed up": lambda values: values.round().clamp(-128, 127).roll(1, 1),
}


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("variant", [rare("fused"), "tuned"])
@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_the_check_sees_wrong_integers(trial, name, variant, wrong):
    import torch

    made = trial(name, variant, "float16", **sizes((200, 96)))
    if hasattr(made.inputs, "sy"):
        made.inputs.sy.mul_(0.5)  # more of them saturate
    if name == "dequantize_bias_gelu_quantize":
        made.inputs.sy.mul_(-1)  # GELU has no large negative values
    values = expected_values(made)
    assert int((values < -128).sum()) > 3
    assert int((values > 127).sum()) > 3 or name == "dequantize_bias_gelu_quantize"
    if wrong == "saturates at 126" and not bool((values > 126.6).any()):
        pytest.skip("no value is that large")
    make = WRONG[wrong] if wrong else lambda values: values.round().clamp(-128, 127)
    outputs = {"y": make(values).to(torch.int8)}
    if name == LAYER_NORM:
        t = made.inputs
        sums = t.acc.double() * (t.sx.double() * t.sw.double()) + t.bias.double() + t.residual.double()
        outputs["h"] = sums.to(made.ctx.dtype)
    found = made.complaint(**outputs)
    assert (found is None) == (wrong is None), found
    assert found is None or found.startswith("y: ")


@pytest.mark.parametrize("name", ["dequantize_bias", "dequantize_bias_residual", LAYER_NORM])
@pytest.mark.parametrize("variant", OURS)
def test_the_check_sees_a_wrong_sum(trial, name, variant, dtype):
    """A sum that lacks the residual, or has a wrong element, is wrong whatever the steps may round."""
    made = trial(name, "eager", dtype, **sizes((20, 96)))
    after = made.call()
    judged = trial(name, variant, dtype, **sizes((20, 96)))
    assert judged.complaint(**vars(after)) is None or (name == LAYER_NORM and variant != "separate")
    sums = after.h if name == LAYER_NORM else after.y
    kept = sums.clone()
    sums[3, 5] *= 1.1
    assert "element 293 is" in judged.complaint(**vars(after))
    sums.copy_(kept - (made.inputs.residual if hasattr(made.inputs, "residual") else made.inputs.bias))
    assert judged.complaint(**vars(after)) is not None


# ---- Traffic.


def test_traffic_of_steps():
    values, count = sizes((8, 16)), 128
    moved = {
        name: {variant: OPS[name].traffic_of(OPS[name].variants[variant], values, "float16") for variant in OURS}
        for name in NAMES
    }
    assert moved["dequantize_bias"]["separate"] == Traffic(6 * count, 4 * count)
    assert moved["dequantize_bias_residual"]["separate"] == Traffic(10 * count, 6 * count)
    assert moved["dequantize_bias_gelu_quantize"]["separate"] == Traffic(10 * count, 7 * count)
    assert moved[LAYER_NORM]["separate"] == Traffic(14 * count, 9 * count)
    assert moved["quantize"]["separate"] == Traffic(4 * count, 3 * count)
    for name in NAMES:
        assert moved[name]["fused"] == moved[name]["tuned"]
        work = OPS[name].work_of(values, "float16")
        assert moved[name]["tuned"] == Traffic(work.read, work.written)
        eager = OPS[name].variants["eager"]
        halves, floats = (OPS[name].traffic_of(eager, values, dtype) for dtype in ("float16", "float32"))
        assert halves.read + halves.written > work.read + work.written
        assert floats.read >= work.read - 4 * 16 * 4 - 12


# ---- The kernels.


def zeroed(*names):
    """Makes these inputs zeros, if the op has them."""

    def change(made):
        for name in made.keys() & set(names):
            made[name].zero_()

    return change


def with_zero_rows(made):
    """Makes two rows zeros, and the bias, so that their sums are zeros."""
    zeroed("bias")(made)
    for name in made.keys() & {"x", "acc", "residual"}:
        made[name][1:3] = 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("scales", SCALES)
def test_shapes(judge, name, variant, scales, dtype):
    for rows, columns in [*SHAPES, (2049, 1024), (2051, 1023)]:
        assert judge(name, variant, dtype, rows, columns, scales=scales) is None, (rows, columns)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize(
    "limits",
    [
        {"SHORTEST": 0},  # parts of rows, however short
        {"SHORTEST": 2**20},  # tiles of a unit a thread
        {"SHORTEST": 2**20, "FEW_ELEMENTS": 0},  # tiles of two
        {"_SMALL": 0},
    ],
    ids=str,
)
def test_plans_of_other_matrices_at_all_shapes(judge, monkeypatch, name, scales, dtype, limits):
    """Few of these shapes have each of these plans by the rule."""
    for limit, value in limits.items():
        monkeypatch.setattr(_tiles, limit, value)
    for rows, columns in SHAPES:
        assert judge(name, "tuned", dtype, rows, columns, scales=scales) is None, (rows, columns)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", OURS)
def test_empty_tensors(judge, name, variant, dtype):
    for rows, columns in ((0, 8), (8, 0), (0, 0)):
        assert judge(name, variant, dtype, rows, columns) is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(judge, name, variant, dtype):
    tensors = [tensor.name for tensor in (*OPS[name].inputs, *OPS[name].outputs)]
    for shape, offset in itertools.product(((5, 96), (5, 97), (3, 1024)), (1, 3, 4)):
        for moved in (*([tensor] for tensor in tensors), tensors):
            assert judge(name, variant, dtype, *shape, offsets=dict.fromkeys(moved, offset)) is None, (shape, moved)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("scales", SCALES)
def test_zeros(judge, name, variant, scales, dtype):
    """Rows and scales of zeros: 0 / 0 gives 0, and everything else saturates."""

    every = [tensor.name for tensor in OPS[name].inputs]
    for change in (zeroed("sw"), zeroed("scale", "sy"), zeroed(*every), with_zero_rows):
        for shape in ((7, 96), (7, 97), (3, 1024)):
            assert judge(name, variant, dtype, *shape, scales=scales, change=change) is None, shape


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("variant", OURS)
def test_the_largest_integers(judge, name, variant, dtype):
    def change(made):
        made["acc"][0, :4] = made["acc"].new_tensor([2**31 - 1, -(2**31), 2**24 + 1, -1])

    for shape in ((7, 96), (7, 97)):
        assert judge(name, variant, dtype, *shape, change=change) is None, shape


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("variant", OURS)
@pytest.mark.parametrize("shape", [(2**21 + 1, 1024), (2**21 + 5, 1025)], ids=str)
def test_more_than_2_to_31_elements(judge, name, variant, shape):
    assert judge(name, variant, "float16", *shape) is None
