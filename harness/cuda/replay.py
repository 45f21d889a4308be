"""Launches that were made once, made again with other tensors: no plan, no check and no argument is looked up anew.

Which kernels a call launches, and with which arguments, follows from the sizes and types of its tensors, and from where
they begin inside of 16 bytes. So the launches of one call serve for all calls that are alike in this. Only addresses
differ.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cuda.launch import COPY, LAUNCHES, Launched, config, launch

_STREAMS = 64  # for which a replay keeps the driver's records of its launches
_WORD = ctypes.sizeof(ctypes.c_uint64)
_ALIGNMENT = 512  # bytes: torch's allocator places tensors so


class Replay:
    """The launches of one call, ready to be made again. Threads may call it at the same time.

    words: all arguments, of 8 bytes each: an address for each tensor of the call, one for each tensor of the launches'
    own, then all other arguments. steps: of each launch, the driver's handle of the kernel, how it is launched, and the
    words of its arguments. workspace: bytes of the launches' own tensors. offsets: where these begin in the bytes.
    """

    def __init__(self, launches: Sequence[Launched], tensors: Sequence[torch.Tensor]) -> None:
        """Take the launches of a call with these tensors, which are objects of their own.

        Raises ValueError where an argument is a part of one of the tensors.
        """
        addresses = _Addresses(tensors, [value for made in launches for value in made.arguments])
        self.workspace, self.offsets = addresses.workspace, addresses.offsets
        self.words = [0] * (len(tensors) + len(self.offsets))
        rows = [[self._word(value, addresses.words) for value in made.arguments] for made in launches]
        self.steps = [(made.function, made.shape, row) for made, row in zip(launches, rows, strict=True)]
        self._pack = Struct(f"{len(tensors) + len(self.offsets)}Q").pack_into
        self._shapes: dict[int, list[Any]] = {}
        self._free: list[_Arguments] = []

    @classmethod
    def of(cls, call: Callable[..., object], tensors: Sequence[torch.Tensor]) -> Self | None:
        """Make the call, and give what repeats it; None where the call does what no replay can repeat.

        The call gets each tensor as an object of its own, so that arguments tell tensors from each other that are the
        same now and won't be the next time.
        """
        own = [tensor.detach() for tensor in tensors]
        with LAUNCHES.taken() as launches, TorchWatch() as watch:
            call(*own)
        try:
            return cls(launches, own) if watch.harmless and COPY not in launches else None
        except ValueError:
            return None

    def _word(self, value: Any, known: dict[int, int]) -> int:
        """The word in which an argument lies or begins."""
        if id(value) in known:
            return known[id(value)]
        word = len(self.words)
        data = bytes(_WORD) if value is None or hasattr(value, "data_ptr") else bytes(value)
        words = -(-len(data) // _WORD)
        self.words += Struct(f"{words}Q").unpack(data.ljust(words * _WORD, b"\0"))
        return word

    def __call__(self, stream: int, addresses: list[int], workspace: int = 0) -> None:
        """Make the launches on a stream of the current device, with the addresses of the call's tensors in order.

        stream: the driver's handle. workspace: the address of the bytes that the launches need.
        """
        arguments = self._free.pop() if self._free else _Arguments(self.words, [row for _, _, row in self.steps])
        if self.offsets:
            addresses = addresses + [workspace + offset for offset in self.offsets]
        self._pack(arguments.words, 0, *addresses)
        shapes = self._shapes.get(stream) or self._on(stream)
        for shape, (function, _, _), of_launch in zip(shapes, self.steps, arguments.addresses, strict=True):
            launch(shape, function, of_launch)
        self._free.append(arguments)

    def _on(self, stream: int) -> list[Any]:
        if len(self._shapes) >= _STREAMS:
            self._shapes.clear()
        shapes = [shape for _, shape, _ in self.steps]
        made = [config(shape.grid, shape.block, shape.shared, shape.cluster, stream) for shape in shapes]
        return self._shapes.setdefault(stream, made)


class _Addresses:
    """The word of each argument that is an address. words: by the argument's id.

    workspace: bytes of the tensors that are the launches' own. offsets: where these tensors begin in the bytes.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], arguments: Sequence[Any]) -> None:
        self.words = {id(tensor): index for index, tensor in enumerate(tensors)}
        self.workspace = 0
        self.offsets: list[int] = []
        given = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        begins: dict[int, int] = {}  # where the bytes of a storage begin in the workspace, by the storage's address
        for value in arguments:
            if not hasattr(value, "data_ptr") or id(value) in self.words or not value.numel():
                continue
            storage = value.untyped_storage()
            if storage.data_ptr() in given:
                raise ValueError("an argument is a part of a tensor, and its place can't be told from the tensor")
            if storage.data_ptr() not in begins:
                begins[storage.data_ptr()] = self.workspace
                self.workspace += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
            self.words[id(value)] = len(tensors) + len(self.offsets)
            self.offsets.append(begins[storage.data_ptr()] + value.data_ptr() - storage.data_ptr())


class _Arguments:
    """The words of a replay's arguments, and for each launch the address of the addresses of its arguments."""

    def __init__(self, words: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
        self.words = (ctypes.c_uint64 * len(words))(*words)
        begin = ctypes.addressof(self.words)
        self._rows = [(ctypes.c_uint64 * len(row))(*[begin + _WORD * word for word in row]) for row in rows]
        self.addresses = [ctypes.addressof(row) for row in self._rows]


class TorchWatch(TorchDispatchMode):  # type: ignore[misc]
    """Whether a call asks nothing of torch that a replay would leave out: nothing but memory and views."""

    def __init__(self) -> None:
        super().__init__()
        self.harmless = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__.removeprefix("new_")
        self.harmless &= function.is_view or name.startswith("empty")
        return function(*args, **(kwargs or {}))
