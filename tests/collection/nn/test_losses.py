"""Cross-entropy, alone and behind a linear layer, and embeddings on a CPU: values and gradients of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from harness import nn
from tests.one_test import one_test


def batch(rows, columns, dtype=torch.float64, ignored=-100):
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn((rows, columns), generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(0, columns, (rows,), generator=generator)
    targets[::3] = ignored
    return logits, targets


@one_test("ignored", [-100, 2])
@one_test("reduction", ["mean", "sum", "none"])
@one_test("smoothing", [0.0, 0.1])
def test_cross_entropy(ignored, reduction, smoothing):
    logits, targets = batch(10, 7, ignored=ignored)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    ours = nn.cross_entropy(logits, targets, ignored, **options)
    torchs = functional.cross_entropy(logits, targets, ignore_index=ignored, **options)
    torch.testing.assert_close(ours, torchs)
    got, wanted = (torch.autograd.grad(made.square().sum(), logits)[0] for made in (ours, torchs))
    torch.testing.assert_close(got, wanted)


def test_cross_entropy_of_halves_is_of_float32():
    logits, targets = batch(12, 9, torch.bfloat16)
    ours = nn.cross_entropy(logits.view(3, 4, 9), targets.view(3, 4))
    torchs = functional.cross_entropy(logits.float(), targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, torchs)
    got, wanted = (torch.autograd.grad(made, logits)[0] for made in (ours, torchs))
    torch.testing.assert_close(got, wanted)


def test_cross_entropy_of_rows_that_do_not_count_is_nan_as_torchs_is():
    logits, targets = batch(4, 5)
    targets[:] = -100
    assert bool(nn.cross_entropy(logits, targets).isnan())


def test_cross_entropy_says_which_targets_do_not_fit():
    with pytest.raises(ValueError, match=r"must be \(2, 3\)"):
        nn.cross_entropy(torch.ones(2, 3, 4), torch.zeros(6, dtype=torch.long))


@one_test("chunk", [None, 1, 4, 100])
@one_test("dtype", [torch.float64, torch.float32])
def test_linear_cross_entropy(chunk, dtype):
    _, targets = batch(10, 13)
    x, weight = (torch.randn(shape, dtype=dtype).requires_grad_() for shape in ((10, 6), (13, 6)))
    ours = nn.linear_cross_entropy(x, weight, targets, chunk=chunk)
    torchs = functional.cross_entropy(x @ weight.T, targets)
    torch.testing.assert_close(ours, torchs)
    got, wanted = (torch.autograd.grad(3 * made, [x, weight]) for made in (ours, torchs))
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_linear_cross_entropy_makes_no_gradient_that_nobody_wants():
    _, targets = batch(10, 13)
    x, weight = torch.randn(10, 6, requires_grad=True), torch.randn(13, 6)
    (dx,) = torch.autograd.grad(nn.linear_cross_entropy(x, weight, targets, chunk=4), [x])
    (wanted,) = torch.autograd.grad(functional.cross_entropy(x @ weight.T, targets), [x])
    torch.testing.assert_close(dx, wanted)
    with torch.no_grad():
        loss = nn.linear_cross_entropy(x, weight, targets)
    torch.testing.assert_close(loss, functional.cross_entropy(x @ weight.T, targets).detach())


@pytest.mark.parametrize(
    ("shapes", "chunk"), [(((10, 6), (13, 5), 10), None), (((10, 6), (13, 6), 9), None), (((10, 6), (13, 6), 10), 0)]
)
def test_linear_cross_entropy_says_what_does_not_fit(shapes, chunk):
    x, weight, rows = shapes
    with pytest.raises(ValueError, match=r"must be|1 or more"):
        nn.linear_cross_entropy(torch.ones(x), torch.ones(weight), torch.zeros(rows, dtype=torch.long), chunk=chunk)


def test_linear_cross_entropy_says_what_lies_elsewhere():
    with pytest.raises(RuntimeError, match="targets lies on meta, other tensors on cpu"):
        nn.linear_cross_entropy(torch.ones(2, 4), torch.ones(3, 4), torch.zeros(2, dtype=torch.long, device="meta"))


@one_test("padding", [None, 0, 3, -1])
def test_embedding(padding):
    weight = torch.randn((7, 5), dtype=torch.float64).requires_grad_()
    ids = torch.tensor([[0, 3, 3], [6, 0, 1]])
    ours, torchs = nn.embedding(ids, weight, padding), functional.embedding(ids, weight, padding)
    assert torch.equal(ours, torchs)
    got, wanted = (torch.autograd.grad(made.square().sum(), weight)[0] for made in (ours, torchs))
    torch.testing.assert_close(got, wanted)


def test_embedding_says_which_padding_does_not_exist():
    with pytest.raises(ValueError, match="padding_idx is 7; weight has 7 rows"):
        nn.embedding(torch.zeros(2, dtype=torch.long), torch.ones(7, 5), 7)


@pytest.mark.slow  # test_operators.py has a compiled function
def test_losses_are_traced_by_a_compiler_without_a_break(unmeasured_guards):
    _, targets = batch(10, 13)
    weight = torch.randn(13, 6).requires_grad_()

    def step(ids, weight):
        x = nn.embedding(ids, weight)
        return nn.linear_cross_entropy(x, weight, targets, chunk=4) + nn.cross_entropy(x, ids % 6)

    ids = torch.arange(10)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    ours, plain = compiled(ids, weight), step(ids, weight)
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(*(torch.autograd.grad(made, weight)[0] for made in (ours, plain)))
