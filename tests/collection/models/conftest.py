"""Weights and inputs by formulas of whole numbers, the same with every version of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from harness.collection.models import MODELS
from harness.collection.models.files import module_of


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers between -0.5 and 0.5 in float64, each the rounded quotient of whole numbers."""
    k = torch.arange(math.prod(shape))
    return ((31 * k * k + 7919 * k + 104729 * seed) % 10007).double().div(10007).sub(0.5).view(shape)


def seeded(model: nn.Module) -> nn.Module:
    """The model in float64, with weights of such sizes that no layer's output vanishes or grows."""
    model.double()
    for seed, (name, parameter) in enumerate(model.named_parameters()):
        scale = math.sqrt(12 / parameter[0].numel()) if parameter.ndim > 1 else 0.2
        offset = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
        parameter.data = scale * numbers(*parameter.shape, seed=seed + 1) + offset
    return model


def gradients(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_same(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    """The same names; and values that differ by no more than rounding does, where a sum's order differs."""
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        size = max(1e-3, theirs[name].abs().max().item())
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-11 * size, msg=lambda m, n=name: f"{n}: {m}")


def fingerprint(outputs: tuple[torch.Tensor, ...], loss: torch.Tensor, slopes: list[torch.Tensor]) -> list[float]:
    """Loss; first number and norm of each output; norms of some gradients."""
    shown = [loss, *(one for output in outputs for one in (output.flatten()[0], output.norm()))]
    return [one.item() for one in [*shown, *(slope.norm() for slope in slopes)]]


def operators_counted(kind: Any, given: Mapping[str, Callable[..., Any]]) -> tuple[Any, dict[str, int]]:
    """Operators of a kind that count their calls: the operators in `given`, and defaults for the rest."""
    calls: dict[str, int] = {}
    defaults = kind()

    def counted(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
            assert name == "attention" or all(one.is_contiguous() for one in tensors), name
            return operator(*arguments)

        return call

    names = [field.name for field in fields(defaults)]
    operators = {name: given.get(name) or getattr(defaults, name) for name in names}
    return kind(**{name: counted(name, operator) for name, operator in operators.items() if operator}), calls


@pytest.fixture(autouse=True)
def small_models(one_thread: None) -> None:
    """Every test here has one thread."""


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """The functions above, for the tests beside this file."""
    return SimpleNamespace(
        numbers=numbers,
        seeded=seeded,
        gradients=gradients,
        assert_same=assert_same,
        fingerprint=fingerprint,
        operators_counted=operators_counted,
    )


def _named(name: str) -> SimpleNamespace:
    module = module_of(name)
    return SimpleNamespace(name=name, config=MODELS[name], module=module, kind=module.MODEL)


@pytest.fixture(params=sorted(MODELS))
def named(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each model with its configuration, its module and its class."""
    return _named(request.param)


@pytest.fixture(params=["resnet_toy", "bert_toy", "swin_toy", "llama_toy"])
def toy(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Each of the small models, likewise."""
    return _named(request.param)
