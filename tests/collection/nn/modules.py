"""What is tried with every module of harness.nn, each beside torch's module of the same meaning."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness import nn


class TorchBatchNormAddReLU(torch.nn.BatchNorm2d):  # type: ignore[misc]
    """The function of our module, by torch's functions."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = super().forward(x)
        return functional.relu(y if residual is None else y + residual)


@dataclass(frozen=True)
class Pair:
    """A module of ours and torch's. settings: arguments of both constructors. shape: of the input. has_text: whether
    ours prints as torch's does."""

    ours: type[torch.nn.Module]
    theirs: type[torch.nn.Module]
    settings: tuple[dict[str, Any], ...]
    shape: tuple[int, ...]
    has_text: bool = True

    def made(self) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
        """Both modules for all settings, with equal parameters that are random."""
        both = []
        for setting in self.settings:
            theirs, ours = self.theirs(**setting), self.ours(**setting)
            for tensor in theirs.state_dict().values():
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
            ours.load_state_dict(theirs.state_dict())
            both.append((ours, theirs))
        return both


PAIRS: dict[str, Pair] = {
    "LayerNorm": Pair(
        nn.LayerNorm,
        torch.nn.LayerNorm,
        (
            *({"normalized_shape": 8}, {"normalized_shape": (4, 8), "eps": 1e-3}),
            *({"normalized_shape": 8, "bias": False}, {"normalized_shape": [4, 8], "elementwise_affine": False}),
            {"normalized_shape": 8, "dtype": torch.float64},
        ),
        (6, 4, 8),
    ),
    "RMSNorm": Pair(
        nn.RMSNorm,
        torch.nn.RMSNorm,
        (
            *({"normalized_shape": 8}, {"normalized_shape": (4, 8), "eps": 1e-3}),
            {"normalized_shape": 8, "elementwise_affine": False},
        ),
        (6, 4, 8),
    ),
    "Softmax": Pair(nn.Softmax, torch.nn.Softmax, ({"dim": -1}, {"dim": 1}, {"dim": 2}, {"dim": 0}), (3, 4, 8)),
    "Dropout": Pair(nn.Dropout, torch.nn.Dropout, ({"p": 0.0}, {"p": 1.0}, {"p": 1.0, "inplace": True}), (4, 8)),
    "BatchNormAddReLU": Pair(
        nn.BatchNormAddReLU,
        TorchBatchNormAddReLU,
        (
            *({"num_features": 3}, {"num_features": 3, "momentum": None}, {"num_features": 3, "affine": False}),
            *({"num_features": 3, "track_running_stats": False}, {"num_features": 3, "eps": 1e-2, "momentum": 0.3}),
        ),
        (4, 3, 5, 5),
        has_text=False,
    ),
}  # fmt: skip


def after(model: torch.nn.Module, shape: tuple[int, ...], *, device: str = "cpu") -> list[Tensor]:
    """Outputs in training and in evaluation, the gradients of all parameters, and buffers after two steps."""
    made = []
    kind = next((one.dtype for one in model.parameters()), torch.float32)
    for seed in range(2):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, kind).requires_grad_()
        y = model.train()(x * 1)
        y.square().sum().backward()
        made += [y.detach(), x.grad, model.eval()(x.detach() * 1).detach()]
    made += [one.grad for one in model.parameters() if one.grad is not None]
    return [*made, *(one.clone() for one in model.buffers())]


def assert_alike(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-5) -> None:
    """Both are the same but for rounding."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def constructor(pair: Pair) -> None:
    assert inspect.signature(pair.ours) == inspect.signature(pair.theirs)
    for ours, theirs in pair.made():
        text = repr(ours)
        assert text == repr(theirs) if pair.has_text else text.startswith(f"{pair.ours.__name__}(3, eps=")


def state_dict(pair: Pair) -> None:
    for ours, theirs in pair.made():
        new_ours, new_theirs = copy.deepcopy(ours), copy.deepcopy(theirs)
        for module in (new_ours, new_theirs):
            for tensor in module.state_dict().values():
                tensor.zero_()
        assert not any(new_ours.load_state_dict(theirs.state_dict()))
        assert not any(new_theirs.load_state_dict(ours.state_dict()))
        assert [*new_theirs.state_dict()] == [*new_ours.state_dict()]
        assert_alike([*new_ours.state_dict().values()], [*new_theirs.state_dict().values()], 0.0)


def sequential(pair: Pair) -> None:
    """In float64: the gradient of the first layer is a difference of large terms, of which float32 loses digits."""
    for ours, theirs in pair.made():
        first = torch.nn.Linear(pair.shape[-1], pair.shape[-1], dtype=torch.float64)
        models = [torch.nn.Sequential(copy.deepcopy(first), one.double(), torch.nn.GELU()) for one in (ours, theirs)]
        assert_alike(after(models[0], pair.shape), after(models[1], pair.shape), 1e-9)


def deepcopy(pair: Pair) -> None:
    for ours, _ in pair.made():
        saved = io.BytesIO()
        torch.save(ours, saved)
        saved.seek(0)
        copies = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), torch.load(saved, weights_only=False)
        wanted = after(ours, pair.shape)
        for one in copies:
            assert type(one) is type(ours)
            assert_alike(after(one, pair.shape), wanted, 0.0)


def to(pair: Pair) -> None:
    for ours, theirs in pair.made():
        x = torch.randn(pair.shape, dtype=torch.float64)
        assert_alike([ours.double()(x * 1)], [theirs.double()(x * 1)])
        assert ours.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def compile_(pair: Pair) -> None:
    ours, theirs = pair.made()[0]
    assert_alike(after(torch.compile(ours, fullgraph=True, backend="aot_eager"), pair.shape), after(theirs, pair.shape))


def functional_call(pair: Pair) -> None:
    for ours, theirs in pair.made():
        made = []
        for module in (ours, theirs):
            given = dict(module.named_parameters())
            x = torch.ones(pair.shape).cumsum(0).to(next(iter(given.values()), torch.ones(())).dtype)

            def loss(parameters: Any, x: Tensor, buffers: Any, module: torch.nn.Module = module) -> Tensor:
                return torch.func.functional_call(module, (parameters, buffers), (x * 1,)).square().sum()

            slopes, slope = torch.func.grad(loss, (0, 1))(given, x, dict(module.named_buffers()))
            made.append([slope, *slopes.values()])
        assert_alike(made[0], made[1], 1e-4)


TRIED: dict[str, Callable[[Pair], None]] = {
    **{one.__name__: one for one in (constructor, state_dict, sequential, deepcopy, to, functional_call)},
    "compile": compile_,
}
