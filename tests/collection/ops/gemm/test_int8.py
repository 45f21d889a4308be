"""Quantised numbers and the error of their products, against figures counted by hand (row S15)."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.gemm import _int8
from tests.one_test import one_test


def test_the_largest_value_becomes_127_and_halves_go_to_the_even_number():
    import torch

    q, scale = _int8.quantise(torch.tensor([[254.0, -254.0, 3.0], [5.0, -1.0, 0.0]]))
    assert scale.tolist() == [2.0]
    assert q.tolist() == [[127, -127, 2], [2, 0, 0]]  # 1.5, 2.5 and -0.5 lie between two


def test_each_row_has_its_own_scale():
    import torch

    q, scale = _int8.quantise(torch.tensor([[127.0, 1.0], [0.5, -63.5], [0.0, 0.0]]), per_row=True)
    assert scale.tolist() == [1.0, 0.5, 0.0]
    assert q.tolist() == [[127, 1], [1, -127], [0, 0]]


def test_zeros_have_the_scale_0_and_stay_zeros():
    import torch

    q, scale = _int8.quantise(torch.zeros(3, 4))
    assert (scale.tolist(), int(q.abs().max())) == ([0.0], 0)


def test_what_is_beyond_int8_saturates():
    import torch

    given = torch.tensor([127.4, 127.6, 1e9, math.inf, -127.6, -128.4, -129.0, -math.inf])
    assert _int8.rounded(given).tolist() == [127, 127, 127, 127, -128, -128, -128, -128]


def test_products_of_minus_128_are_exact():
    import torch

    for k in (1, 64, 6144):
        lowest = torch.full((2, k), -128, dtype=torch.int8)
        ((_, product),) = _int8.products(lowest, lowest[:1])
        assert product.tolist() == [[16384 * k]] * 2
        assert torch.equal(product.int(), torch._int_mm(lowest, lowest[:1].t()))


def test_parts_are_all_rows_once(monkeypatch):
    import torch

    monkeypatch.setattr(_int8, "_CHUNK", 7 * 5)
    x, weight = torch.randn(30, 4), torch.randn(5, 4)
    parts = list(_int8.products(x, weight))
    assert [len(part) for _, part in parts] == [7, 7, 7, 7, 2]
    torch.testing.assert_close(torch.cat([part for _, part in parts]), x.double() @ weight.double().t())


def test_errors_counted_by_hand():
    import torch

    errors = _int8.Inaccuracy()
    # Inaccuracy 0.1, 0.2, 0 and 0.1: squares of 0.06 in all, against 9 + 16 + 0 + 75 = 100.
    errors.add(torch.tensor([3.1, -3.8], dtype=torch.float64), torch.tensor([3.0, -4.0], dtype=torch.float64))
    root = math.sqrt(75)
    errors.add(torch.tensor([0.0, root - 0.1], dtype=torch.float64), torch.tensor([0.0, root], dtype=torch.float64))
    assert errors.figures == pytest.approx(
        {"snr": 10 * math.log10(100 / 0.06), "mean_error": 0.1 / 5, "largest_error": 0.2 / 5}
    )


@one_test(("got", "exact"), [(0.0, 0.0), (1.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_no_error_or_no_signal_has_no_figure(got, exact):
    import torch

    errors = _int8.Inaccuracy()
    errors.add(torch.full((3,), got), torch.full((3,), exact, dtype=torch.float64))
    assert errors.figures == {}


def test_a_uniform_rounding_error_has_the_figure_of_the_textbook():
    """A sine of amplitude A has the energy A^2 / 2, and steps of A / 127 an error of their square over 12."""
    import torch

    wave = torch.sin(torch.arange(100_000, dtype=torch.float64))
    q, scale = _int8.quantise(wave.view(1, -1))
    errors = _int8.Inaccuracy()
    errors.add(q * scale.double(), wave.view(1, -1))
    assert errors.figures["snr"] == pytest.approx(10 * math.log10(6 * 127**2), abs=0.2)
