"""AdamW, the gradient scaler and unscale_: the results of torch's, and tables that tell kernels the right addresses."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn as torch_nn

from harness import cuda, nn
from harness.collection.nn import _adamw, _pieces, _unscale
from harness.collection.nn._pieces import PieceLayout
from harness.collection.ops.lists import _tables, adamw, unscale
from tests.one_test import one_test

OVERFLOWS = (3, 7)
UNUSED = 11  # the step in which the second layer has no gradient


def trained(
    kind: Callable[..., Any], scaler: Any = None, dtype: torch.dtype = torch.float64, steps: int = 20, **options: Any
) -> SimpleNamespace:
    """A small model after some steps: its parameters, the scale after each step, and its optimizer."""
    torch.manual_seed(0)
    model = torch_nn.Sequential(*(torch_nn.Linear(*sizes, dtype=torch.float64) for sizes in ((5, 7), (7, 3)))).to(dtype)
    optimizer = kind(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.3}], lr=1e-2, **options
    )
    scales = []
    for step in range(steps):
        x = torch.randn(4, 5, dtype=torch.float64).to(dtype)
        optimizer.zero_grad()
        loss = (model[0] if step == UNUSED else model)(x).square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
            continue
        scaler.scale(loss).backward()
        if step in OVERFLOWS:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return SimpleNamespace(parameters=[*model.parameters()], scales=scales, optimizer=optimizer)


def assert_same(ours: SimpleNamespace, theirs: SimpleNamespace, tolerance: float = 0.0) -> None:
    assert ours.scales == theirs.scales
    for one, other in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def scaler(kind: Any) -> Any:
    return kind("cpu", init_scale=8.0, growth_interval=5)


@one_test("dtype", [torch.float64, torch.float32])
@one_test("options", [{}, {"betas": (0.0, 0.5), "eps": 1e-4, "weight_decay": 0.0}])
def test_steps_are_those_of_torch(dtype, options):
    assert_same(trained(nn.AdamW, dtype=dtype, **options), trained(torch.optim.AdamW, dtype=dtype, **options))


@pytest.mark.parametrize("ours", [nn.GradScaler, torch.amp.GradScaler])
def test_steps_with_an_overflow_are_skipped_alike(ours):
    made = trained(nn.AdamW, scaler(ours))
    assert_same(made, trained(torch.optim.AdamW, scaler(torch.amp.GradScaler)))
    # The second group missed a step, as in torch.
    assert {float(state["step"]) for state in made.optimizer.state.values()} == {18.0, 17.0}
    assert len(set(made.scales)) > 1


def test_our_scaler_serves_other_optimizers():
    theirs = trained(torch.optim.AdamW, scaler(torch.amp.GradScaler))
    assert_same(trained(torch.optim.AdamW, scaler(nn.GradScaler)), theirs)


def test_halves_have_masters():
    halves = trained(nn.AdamW, scaler(nn.GradScaler), torch.float16)
    exact = trained(nn.AdamW, scaler(nn.GradScaler))
    assert_same(halves, SimpleNamespace(scales=exact.scales, parameters=[one.half() for one in exact.parameters]), 2e-3)
    for parameter, state in halves.optimizer.state.items():
        assert state["master"].dtype == state["exp_avg"].dtype == torch.float32
        assert torch.equal(state["master"].half(), parameter)


@one_test("saved_by", [nn.AdamW, torch.optim.AdamW])
@one_test("loaded_by", [nn.AdamW, torch.optim.AdamW])
def test_state_can_be_exchanged(saved_by, loaded_by):
    saved = trained(saved_by)
    loaded = trained(loaded_by, steps=0)
    loaded.optimizer.load_state_dict(deepcopy(saved.optimizer.state_dict()))
    for one, other in zip(loaded.parameters, saved.parameters, strict=True):
        one.data.copy_(other)
        one.grad, other.grad = torch.ones_like(one), torch.ones_like(one)
    for each in (saved, loaded):
        each.optimizer.step()
    assert_same(loaded, saved, 1e-15)
    if loaded_by is nn.AdamW:
        assert len({id(state["step"]) for state in loaded.optimizer.state.values()}) == 2


def test_masters_and_moments_of_halves_stay_in_float32_when_loaded():
    saved, loaded = (trained(nn.AdamW, dtype=torch.float16, steps=steps).optimizer for steps in (5, 0))
    loaded.load_state_dict(pickle.loads(pickle.dumps(saved.state_dict())))
    for one, other in zip(loaded.state.values(), saved.state.values(), strict=True):
        for name in ("master", "exp_avg", "exp_avg_sq"):
            assert one[name].dtype == torch.float32
            assert torch.equal(one[name], other[name])


@one_test(
    "wrong", [{"lr": -1.0}, {"lr": torch.tensor(-1.0)}, {"lr": torch.ones(2)}, {"betas": (0.9, 1.0)}, {"eps": -1.0}]
)
def test_settings_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        nn.AdamW([torch.ones(1, requires_grad=True)], **wrong)


def test_saved_options_that_it_lacks():
    with pytest.raises(ValueError, match="no amsgrad"):
        trained(nn.AdamW, steps=0).optimizer.load_state_dict(
            trained(torch.optim.AdamW, amsgrad=True).optimizer.state_dict()
        )


def test_a_closure_is_called_with_gradients():
    weight = torch.ones(1, requires_grad=True)
    optimizer = nn.AdamW([weight])

    def closure():
        (weight * 2).sum().backward()
        return 7.0

    assert optimizer.step(closure) == 7.0
    assert weight < 1


# ---- Tables, and kernels that read and write at the addresses in them, in place of tables and kernels on a GPU.


@pytest.mark.usefixtures("kernels")
def test_the_kernels_steps_are_those_of_torch():
    made = trained(nn.AdamW, dtype=torch.float32)
    assert_same(made, trained(torch.optim.AdamW, dtype=torch.float32), 1e-6)


@pytest.mark.usefixtures("kernels")
def test_the_kernels_steps_are_skipped_on_the_device():
    made = trained(nn.AdamW, scaler(nn.GradScaler), torch.float32)
    assert_same(made, trained(torch.optim.AdamW, scaler(torch.amp.GradScaler), torch.float32), 1e-6)


@pytest.mark.usefixtures("kernels")
def test_a_step_after_a_skipped_one_needs_no_scaler():
    weight = torch.ones(3000, requires_grad=True)
    weight.grad = torch.ones(3000)
    optimizer = nn.AdamW([weight], weight_decay=0.0)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert bool((weight == 1).all())
    assert float(optimizer.state[weight]["step"]) == 0
    del optimizer.found_inf
    optimizer.step()
    assert bool((weight < 1).all())


def after_small_gradients(dtype: torch.dtype, scaler: Any, overflow: bool) -> torch.Tensor:
    """What two steps of a weight become with gradients that float16 has not: 2^-26 and 2^-30."""
    weight = torch.ones(3000, dtype=dtype, requires_grad=True)
    optimizer = nn.AdamW([weight], lr=1e-2, weight_decay=0.0)
    for step in range(2):
        weight.grad = torch.full_like(weight, 2.0**-26 * 2.0**14)
        weight.grad[0] = 2.0**-30 * 2.0**14
        if step and overflow:
            weight.grad[1] = float("inf")
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        assert dtype == torch.float32 or float(weight.grad[0]) == 2.0**-16
    state = optimizer.state[weight]
    assert float(state["step"]) == (1 if overflow else 2)
    assert torch.equal(state["exp_avg"][0], state["exp_avg"][2] / 16)
    return state.get("master", weight).detach()


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("ours", [nn.GradScaler, torch.amp.GradScaler])
@pytest.mark.parametrize("overflow", [False, True])
def test_gradients_in_halves_lose_nothing_to_the_scale(request, by_kernels, ours, overflow):
    if by_kernels:
        request.getfixturevalue("kernels")
    made, wanted = (
        after_small_gradients(dtype, ours("cpu", init_scale=2.0**14), overflow)
        for dtype in (torch.float16, torch.float32)
    )
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("kernels")
def test_a_step_without_a_scale_runs_the_kernel_that_the_catalogue_measures(monkeypatch):
    macros: list[Any] = []
    found = _adamw.of_lists(_adamw.adamw.OP, {})
    monkeypatch.setattr(_adamw, "of_lists", lambda _, given: macros.append(given) or found)
    for kind in (torch.float32, torch.float16):
        trained(nn.AdamW, scaler(nn.GradScaler), kind, steps=1)
    trained(nn.AdamW, None, torch.float16, steps=1)
    assert [given.get("SCALED") for given in macros] == [None, None, 1, 1, None, None]
    assert [given["COPY"] for given in macros] == [0, 0, 1, 1, 1, 1]


@pytest.mark.usefixtures("kernels")
def test_the_kernels_write_halves_from_their_masters():
    made = trained(nn.AdamW, dtype=torch.float16)
    for parameter, state in made.optimizer.state.items():
        assert torch.equal(state["master"].half(), parameter)
    exact = trained(nn.AdamW, dtype=torch.float32)
    for one, other in zip(made.parameters, exact.parameters, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0, atol=2e-3)


@pytest.mark.usefixtures("kernels")
def test_the_unscaling_kernel_finds_every_element_wherever_tensors_begin():
    base = torch.arange(20_000, dtype=torch.float32)
    grads = [base[1:3000], base[3001:3004], base[3005:3005], base[4000:8111], base[12_000:19_999].view(-1, 19)]
    inside = torch.zeros(20_000, dtype=torch.bool)
    inside[1:3000] = inside[3001:3004] = inside[4000:8111] = inside[12_000:19_999] = True
    for _ in range(2):
        before, found = base.clone(), torch.zeros(())
        _unscale._by_kernel(grads, torch.tensor(0.5), found)
        assert torch.equal(base, torch.where(inside, before / 2, before))
        assert float(found) == 0
    base[2000] = float("nan")
    _unscale._by_kernel(grads, torch.tensor(0.5), found)
    assert float(found) == 1


@pytest.mark.usefixtures("kernels")
def test_a_graph_has_tables_of_its_own_and_copies_nothing_from_the_host(monkeypatch):
    weight = torch.ones(3000, requires_grad=True)
    optimizer, found = nn.AdamW([weight]), torch.zeros(())

    def step():
        weight.grad = torch.ones(3000)
        _unscale._by_kernel([weight.grad], torch.tensor(0.5), found)
        optimizer.step()

    step()
    (table,) = optimizer._tables.values()
    rows = table.rows.clone()
    monkeypatch.setattr(_pieces, "capturing", lambda: True)
    monkeypatch.setattr(_pieces, "_CAPTURED", [])
    monkeypatch.setattr(PieceLayout, "__init__", lambda *_, **__: pytest.fail("a layout is copied from the host"))
    monkeypatch.setattr(cuda, "stream_handle", lambda: 1)
    for _ in range(2):
        step()
    assert len(_pieces._CAPTURED) == 2
    assert torch.equal(table.rows, rows)
    assert float(optimizer.state[weight]["step"]) == 3


def test_unscale_is_that_of_torch():
    grads = [torch.randn(5, 3), torch.randn(7).double(), torch.zeros(0), torch.randn(4, 6).half().T]
    theirs = [grad.clone() for grad in grads]
    found, wanted = torch.zeros(()), torch.zeros(())
    nn.unscale_(grads, torch.tensor(0.25), found)
    for grad in theirs:
        torch._amp_foreach_non_finite_check_and_unscale_([grad], wanted, torch.tensor(0.25))
    assert all(map(torch.equal, grads, theirs))
    assert float(found) == 0
    nn.unscale_([torch.tensor([1.0, float("inf")])], torch.tensor(0.25), found)
    assert float(found) == 1
    with pytest.raises(ValueError, match="float32"):
        nn.unscale_(grads, torch.tensor(0.25).double(), found)


def test_tables_are_those_of_the_catalogue():
    tensors = [torch.randn(size) for size in (3000, 1, 0, 17, 1025, 5)]
    others = [torch.randn(tensor.numel()).half() for tensor in tensors]
    counts = [tensor.numel() for tensor in tensors]
    block = _tables.BLOCK * adamw.ELEMENTS
    layout = PieceLayout(counts, [0] * len(counts), block, torch.device("cpu"), shift=0)
    wanted = _tables.side_by_side(tensors, [], others, elements=adamw.ELEMENTS)
    table = layout.table(3)
    for _ in range(2):
        table.point(0, tensors)
        table.point(2, others)
        assert torch.equal(table.rows, torch.from_numpy(wanted.numbers))
    assert (layout.blocks, layout.whole) == (wanted.blocks, wanted.whole)
    moved = [tensor.clone() for tensor in tensors]
    table.point(0, moved)
    again = _tables.side_by_side(moved, [], others, elements=adamw.ELEMENTS)
    assert torch.equal(table.rows, torch.from_numpy(again.numbers))


def test_the_kernels_settings_are_those_of_the_catalogue(monkeypatch):
    seen: list[Any] = []

    def kernel(*arguments: Any) -> None:
        seen.append(arguments)

    loads = {"kernel": lambda *_: kernel, "s": SimpleNamespace(master="none", weight_decay=0.25)}
    launch = adamw._launch(SimpleNamespace(**loads, case=SimpleNamespace(dtype="float32")), "adamw_tuned", adamw._TUNED)
    weights = [torch.ones(3)]
    lists = {"weights": weights, "grads": weights, "exp_avg": weights, "exp_avg_sq": weights, "copies": []}
    table = _tables.TensorTable(torch.zeros(1), 1, 0, tuple(map(tuple, lists.values())))
    launch(SimpleNamespace(**lists, step=torch.ones(1), table=table))
    group = {"lr": adamw.RATE, "betas": (adamw.BETA1, adamw.BETA2), "eps": adamw.EPSILON, "weight_decay": 0.25}
    given = [number.value for number in seen[0] if isinstance(number, ctypes.c_float)]
    assert given == [number.value for number in _adamw._numbers(group)]
    assert unscale.PACKS == 1
