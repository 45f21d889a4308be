"""Tensors inside the data of a form: a tuple, a list, a dict or a tensor, or what holds such values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from harness.judge.records import TensorForm

if TYPE_CHECKING:
    import torch


def tensors(data: Any) -> list[torch.Tensor]:
    """All tensors of the data, in order."""
    import torch

    if isinstance(data, torch.Tensor):
        return [data]
    return [tensor for part in _parts(data) for tensor in tensors(part)]


def replaced(data: Any, values: Sequence[Any]) -> Any:
    """The same data with other values in the places of its tensors, in order."""
    following = iter(values)
    return mapped(data, lambda _: next(following))


def mapped(data: Any, change: Callable[[Any], Any]) -> Any:
    """The same data, with each tensor changed."""
    import torch

    if isinstance(data, torch.Tensor):
        return change(data)
    if isinstance(data, dict):
        return {key: mapped(value, change) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(value, change) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(mapped(value, change) for value in data)
    return data


def described(tensor: torch.Tensor, place: int = 0) -> TensorForm:
    """The form of a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorForm(tuple(tensor.shape), dtype, place, tuple(tensor.stride()))


def _parts(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        yield from data.values()
    elif isinstance(data, (list, tuple)):
        yield from data
