"""The tensors in the arguments of a call, taken out and put back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands in arguments for the tensor of this number."""

    number: int


class Arguments:
    """The arguments of a function, with places for tensors, which may lie in lists, tuples and dicts, too.

    tensors: by names such as 'x', or 'x.0' for the first one of a list; a tensor that is given twice, once.
    """

    def __init__(self, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        named = list(_named(function, args, kwargs))
        self.tensors: dict[str, torch.Tensor] = {}
        self._numbers: dict[int, int] = {}
        made = [self._without(name, value) for name, value in named]
        self._args = tuple(made[: len(args)])
        self._kwargs = dict(zip(kwargs, made[len(args) :], strict=True))
        self._is_flat = not kwargs and self._args == tuple(map(_Place, range(len(self.tensors))))
        self._needs_grad = [tensor.requires_grad for tensor in self.tensors.values()]

    def bound(self, function: Callable[..., Any]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """The function as one of the tensors alone, in their order."""
        if self._is_flat and not any(self._needs_grad):
            return lambda tensors: function(*tensors)

        def call(tensors: Sequence[torch.Tensor]) -> Any:
            own = [
                tensor.detach().requires_grad_() if needs else tensor
                for tensor, needs in zip(tensors, self._needs_grad, strict=True)
            ]
            args = [_filled(value, own) for value in self._args]
            return function(*args, **{name: _filled(value, own) for name, value in self._kwargs.items()})

        return call

    def _without(self, name: str, value: Any) -> Any:
        """The value with places for tensors, which are noted."""
        import torch

        if isinstance(value, torch.Tensor):
            if id(value) not in self._numbers:
                self._numbers[id(value)] = len(self.tensors)
                self.tensors[name] = value
            return _Place(self._numbers[id(value)])
        if type(value) in (list, tuple):
            return type(value)(self._without(f"{name}.{number}", part) for number, part in enumerate(value))
        if type(value) is dict:
            return {key: self._without(f"{name}.{number}", part) for number, (key, part) in enumerate(value.items())}
        return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors that a function returned: one, or lists, tuples and dicts of them."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        yield from tensors_in([*value.values()])


def _named(
    function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Each argument with the name of its parameter, or its number where Python doesn't tell the name."""
    names = [f"argument{number}" for number in range(len(args))]
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):  # a builtin, such as torch.softmax
        parameters = []
    for number, parameter in enumerate(parameters[: len(args)]):
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names[number] = parameter.name
    yield from zip(names, args, strict=True)
    yield from kwargs.items()


def _filled(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.number]
    if type(value) in (list, tuple):
        return type(value)(_filled(part, tensors) for part in value)
    if type(value) is dict:
        return {key: _filled(part, tensors) for key, part in value.items()}
    return value
