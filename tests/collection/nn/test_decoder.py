"""The functions of a decoder on a CPU, where torch does the work: values and gradients are those of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from harness import nn

EPS = 1e-5


def leaves(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def assert_alike(ours, torchs, inputs, tolerance=1e-9):
    """Outputs and the gradients of inputs, for slopes by chance, are equal."""
    ours, torchs = ((made,) if isinstance(made, torch.Tensor) else made for made in (ours, torchs))
    generator = torch.Generator().manual_seed(9)
    for one, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    slopes = [torch.randn(made.shape, generator=generator, dtype=made.dtype) for made in ours]
    got = torch.autograd.grad(ours, inputs, slopes, retain_graph=True)
    wanted = torch.autograd.grad(torchs, inputs, slopes, retain_graph=True)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def plain_sum(x, residual, weight):
    total = x + residual
    return functional.rms_norm(total, weight.shape, weight, EPS), total


def test_rms_norm_with_a_residual():
    inputs = leaves((2, 3, 16), (2, 3, 16), 16)
    assert_alike(nn.add_rms_norm(*inputs), plain_sum(*inputs), inputs)


@pytest.mark.parametrize("used", [0, 1])
def test_rms_norm_with_a_residual_of_which_one_result_is_used(used):
    inputs = leaves((5, 16), (5, 16), 16)
    ours, torchs = nn.add_rms_norm(*inputs)[used], plain_sum(*inputs)[used]
    got, wanted = (torch.autograd.grad(made.square().sum(), inputs, allow_unused=True) for made in (ours, torchs))
    for one, other in zip(got, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_a_residual_of_another_type_is_added_by_torch():
    x, residual, weight = leaves((4, 8), (4, 8), 8, dtype=torch.float32)
    y, total = nn.add_rms_norm(x.bfloat16(), residual, weight)
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("to", ["e4m3", "int8"])
@pytest.mark.parametrize("static", [False, True])
def test_rms_norm_in_8_bits_times_its_scale_is_the_norm(to, static):
    x, residual, weight = (leaf.detach() for leaf in leaves((3, 7, 64), (3, 7, 64), 64, dtype=torch.float32))
    given = torch.tensor([0.05 if to == "int8" else 0.01]) if static else None
    q, scale, total = nn.add_rms_norm_quantize(x, residual, weight, given, to)
    y, wanted = plain_sum(x, residual, weight)
    torch.testing.assert_close(total, wanted)
    assert q.dtype == (torch.int8 if to == "int8" else torch.float8_e4m3fn)
    assert scale.shape == ((1,) if static else (3, 7, 1))
    limit = scale * (127 if to == "int8" else 448)
    step = scale / 2 if to == "int8" else y.abs() / 16 + scale * 2**-10
    assert bool(((q.float() * scale - y.clamp(-limit, limit)).abs() <= step * 1.001).all())


def test_a_type_of_8_bits_that_is_not_there_is_told():
    with pytest.raises(ValueError, match="'e5m2'; allowed: e4m3, int8"):
        nn.add_rms_norm_quantize(torch.ones(2, 8), torch.ones(2, 8), torch.ones(8), to="e5m2")


def test_rms_norm_in_8_bits_says_that_it_has_no_gradient():
    x, residual, weight = leaves((3, 8), (3, 8), 8, dtype=torch.float32)
    with pytest.raises(RuntimeError, match="no gradient of add_rms_norm_quantize"):
        nn.add_rms_norm_quantize(x, residual, weight)
    with torch.no_grad():
        assert nn.add_rms_norm_quantize(x, residual, weight)[0].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("residual", "weight", "said"),
    [((3, 7), 8, r"residual is \(3, 7\), torch.float32; it must be as x is"), ((3, 8), 7, r"weight is \(7,\)")],
)
def test_rms_norm_in_8_bits_says_what_does_not_fit(residual, weight, said):
    with pytest.raises(ValueError, match=said):
        nn.add_rms_norm_quantize(torch.ones(3, 8), torch.ones(residual), torch.ones(weight))


def test_swiglu_of_two_tensors_and_of_one():
    gate, up = leaves((2, 3, 8), (2, 3, 8))
    assert_alike(nn.swiglu(gate, up), functional.silu(gate) * up, [gate, up])
    (both,) = leaves((5, 16))
    first, second = both.chunk(2, -1)
    assert_alike(nn.swiglu(both), functional.silu(first) * second, [both])


@pytest.mark.parametrize("arguments", [(torch.ones(2, 3),), (torch.ones(2, 4), torch.ones(2, 3))])
def test_swiglu_says_what_does_not_fit(arguments):
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        nn.swiglu(*arguments)


def angles(positions, half):
    table = torch.outer(torch.arange(positions).double(), 10_000 ** (-torch.arange(half).double() / half))
    return table.cos().float(), table.sin().float()


def plain_rope(x, cos, sin):
    """As transformers has it: cos and sin (tokens, D), whose halves are alike."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def test_rope_of_halves_is_that_of_transformers():
    q, k = leaves((2, 5, 4, 8), (2, 5, 2, 8))
    cos, sin = (torch.cat((table, table), -1) for table in angles(5, 4))
    wanted = [plain_rope(x.reshape(10, -1, 8), cos.repeat(2, 1), sin.repeat(2, 1)).view(x.shape) for x in (q, k)]
    assert_alike(nn.rope(q, k, cos[None], sin[None]), tuple(wanted), [q, k], 1e-6)


def test_rope_of_neighbours_is_a_product_of_complex_numbers():
    q, k = leaves((6, 4, 8), (6, 1, 8))
    cos, sin = angles(20, 4)
    positions = torch.tensor([3, 19, 0, 0, 7, 2])
    turn = torch.complex(cos.double(), sin.double())[positions][:, None]
    wanted = tuple(
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * turn).flatten(-2) for x in (q, k)
    )
    assert_alike(nn.rope(q, k, cos, sin, positions, interleaved=True), wanted, [q, k], 1e-6)


def test_rope_of_queries_whose_keys_are_not_used_has_a_gradient():
    q, k = leaves((6, 4, 8), (6, 1, 8))
    made, _ = nn.rope(q, k, *angles(6, 4))
    of_q, of_k = torch.autograd.grad(made.square().sum(), [q, k])
    torch.testing.assert_close(of_q, 2 * q.detach(), rtol=1e-6, atol=1e-6)  # a rotation keeps lengths
    assert not of_k.any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"q": torch.ones(6, 4, 7)}, "D must be even"),
        ({"k": torch.ones(6, 1, 8).half()}, "one floating-point type"),
        ({"cos": torch.ones(6, 3)}, r"\(P, 4\)"),
        ({"positions": torch.zeros(5, dtype=torch.long)}, "q has 6 tokens"),
    ],
)
def test_rope_says_what_does_not_fit(change, said):
    cos, sin = angles(6, 4)
    given = {"q": torch.ones(6, 4, 8), "k": torch.ones(6, 1, 8), "cos": cos, "sin": sin} | change
    with pytest.raises(ValueError, match=said):
        nn.rope(**given)


@pytest.mark.slow  # test_operators.py has each function in compiled code
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_functions_are_traced_by_a_compiler_without_a_break(dtype, unmeasured_guards):
    def layer(x, residual, weight, gate):
        y, total = nn.add_rms_norm(x, residual, weight)
        return nn.swiglu(y * gate) + total.chunk(2, -1)[0]

    inputs = leaves((4, 16), (4, 16), 16, 16, dtype=dtype)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_alike(compiled(*inputs), layer(*inputs), inputs, 1e-2 if dtype == torch.bfloat16 else 1e-5)
