"""What is tried with harness.nn.AdamW, beside torch.optim.AdamW."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness import nn

Optimizer = torch.optim.Optimizer
_BOTH = nn.AdamW, torch.optim.AdamW


def model() -> torch.nn.Sequential:
    """Two layers in float64, the same at each call."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(*sizes, dtype=torch.float64) for sizes in ((5, 7), (7, 3)))
    return torch.nn.Sequential(*layers)


def train(own: torch.nn.Module, optimizer: Any, steps: int = 5, between: Callable[[int], None] | None = None) -> None:
    """Some steps; after each one `between` is called."""
    for step in range(steps):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        own(x).square().mean().backward()
        optimizer.step()
        if between:
            between(step)


def assert_same(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    """The parameters of both are the same but for rounding."""
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def compare(prepare: Callable[[torch.nn.Module, Any], tuple[Any, Callable[[int], None] | None]]) -> None:
    """Both classes make the same steps. prepare(model, class): the optimizer, and what is done after each step."""
    models = []
    for kind in _BOTH:
        own = model()
        optimizer, between = prepare(own, kind)
        train(own, optimizer, between=between)
        models.append(own)
    assert_same(*models)


def with_options(**options: Any) -> Callable[[], None]:
    """Steps with these options, where torch's AdamW needs none of them to mean the same."""
    meaning = {name: value for name, value in options.items() if name not in {"fused", "foreach", "capturable"}}

    def tried() -> None:
        compare(lambda own, kind: (kind(own.parameters(), **(options if kind is nn.AdamW else meaning)), None))

    return tried


def fused() -> None:
    for options in ({"fused": True, "capturable": True}, {"foreach": True}, {"fused": False, "amsgrad": False}):
        with_options(**options)()


def tensor_rate() -> None:
    def prepare(own: torch.nn.Module, kind: Any) -> Any:
        rate = torch.tensor(1e-2, dtype=torch.float64)
        return kind(own.parameters(), lr=rate), lambda _: rate.mul_(0.5)

    compare(prepare)


def scheduler() -> None:
    def once(own: torch.nn.Module, kind: Any) -> Any:
        optimizer = kind(own.parameters(), lr=1e-3)
        one = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
        return optimizer, lambda _: one.step()

    def decaying(own: torch.nn.Module, kind: Any) -> Any:
        optimizer = kind(own.parameters(), lr=torch.tensor(1e-2, dtype=torch.float64))
        one = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return optimizer, lambda _: one.step()

    compare(once)
    compare(decaying)


def groups() -> None:
    def prepare(own: Any, kind: Any) -> Any:
        optimizer = kind(own[0].parameters(), lr=1e-2)

        def between(step: int) -> None:
            if step == 1:
                optimizer.add_param_group({"params": own[1].parameters(), "lr": 0.1, "weight_decay": 0.5})

        return optimizer, between

    compare(prepare)


def names() -> None:
    compare(lambda own, kind: (kind(own.named_parameters()), None))
    assert nn.AdamW(model().named_parameters()).state_dict()["param_groups"][0]["param_names"][0] == "0.weight"


def states() -> None:
    """Training goes on in the other class, from its state dict, with the same steps as in one class."""
    straight = model()
    train(straight, torch.optim.AdamW(straight.parameters(), maximize=True), 8)
    for first, second in (_BOTH, _BOTH[::-1], (nn.AdamW, nn.AdamW)):
        own = model()
        optimizer = first(own.parameters(), maximize=True)
        train(own, optimizer, 4)
        other = second(own.parameters())
        assert {*optimizer.state_dict()["param_groups"][0]} == {*other.state_dict()["param_groups"][0]}
        other.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
        _train_from(own, other, 4, 8)
        assert_same(own, straight)


def _train_from(own: torch.nn.Module, optimizer: Any, first: int, last: int) -> None:
    for step in range(first, last):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        own(x).square().mean().backward()
        optimizer.step()


def copies() -> None:
    straight = model()
    train(straight, torch.optim.AdamW(straight.parameters()), 8)
    for copied in (copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))):
        own = model()
        optimizer = nn.AdamW(own.parameters())
        train(own, optimizer, 4)
        own, optimizer = copied((own, optimizer))
        _train_from(own, optimizer, 4, 8)
        assert_same(own, straight)


def scaler() -> None:
    for kind in (nn.GradScaler, torch.amp.GradScaler):
        models = []
        for optimizer_kind in _BOTH:
            own, scales = model(), kind("cpu", init_scale=8.0, growth_interval=2)
            optimizer = optimizer_kind(own.parameters(), maximize=True)
            for step in range(6):
                optimizer.zero_grad()
                loss = own(torch.full((4, 5), step + 1.0, dtype=torch.float64)).square().mean()
                scales.scale(loss).backward()
                if step == 2:
                    own[0].weight.grad[0, 0] = float("nan")
                scales.step(optimizer)
                scales.update()
            models.append(own)
        assert_same(*models)


def closure() -> None:
    called = []

    def prepare(own: torch.nn.Module, kind: Any) -> Any:
        optimizer = kind(own.parameters())
        optimizer.register_step_post_hook(lambda *_: called.append(kind))
        return optimizer, lambda step: optimizer.step(lambda: own(torch.ones(1, 5, dtype=torch.float64)).sum())

    compare(prepare)
    assert called.count(nn.AdamW) == called.count(torch.optim.AdamW) == 10


def step_of(weight: Tensor) -> None:
    """A step of a parameter that has a gradient."""
    nn.AdamW([weight]).step()


def sparse() -> None:
    weight = torch.nn.Embedding(4, 2, sparse=True)
    weight(torch.tensor([1])).sum().backward()
    step_of(weight.weight)


def complex_() -> None:
    weight = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    step_of(weight)


def tensor_betas() -> None:
    with_options(betas=(torch.tensor(0.9), torch.tensor(0.99)))()


TRIED: dict[str, Callable[[], None]] = {
    **{one.__name__: one for one in (fused, tensor_rate, tensor_betas, scheduler, groups, names, states, copies)},
    **{one.__name__: one for one in (scaler, closure, sparse)},
    "complex": complex_,
    "both": with_options(fused=True, foreach=True),
    **{name: with_options(**{name: True}) for name in ("maximize", "amsgrad", "differentiable")},
}
