"""What torch's dispatcher sees of a call: whether a candidate has a kernel of its own, or only calls torch.

A kernel of its own is nothing that the dispatcher sees. It shows in what the dispatcher does see: an output, or what a
call reads, lies in memory that no call has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from harness.judge import data
from harness.judge.records import Calls

_ALLOCATE = ("empty", "new_empty", "resize")
_MOVE = (
    "clone", "copy", "_to_copy", "zero", "zeros", "fill", "full", "ones", "new_zeros", "new_full", "new_ones", "lift",
)  # fmt: skip
_MOST = 12
"""Names of calls that are told."""


def seen(call: Callable[[], object], outputs: Callable[[object], Iterable[Any]]) -> Calls:
    """What is seen of a call. outputs: the tensors of its outputs, given what it returned."""
    from torch.utils._python_dispatch import TorchDispatchMode

    memory: dict[int, str] = {}  # what lies in each memory: 'nothing', 'moved' or 'computed'
    kept: list[Any] = []  # so that no memory is given to another tensor meanwhile
    torchs: dict[str, None] = {}
    others: dict[str, None] = {}
    foreign: list[str] = []

    class Seen(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = data.tensors([args, kwargs or {}])
            made = func(*args, **(kwargs or {}))
            results = data.tensors(made)
            kept.extend((*given, *results))
            name = func._schema.name
            space, _, short = name.partition("::")
            if space not in ("aten", "prims", "prim"):
                others[name] = None
                return made
            before = {_memory(tensor) for tensor in given}
            written = [_memory(tensor) for tensor in results if _memory(tensor) not in before]
            if func._schema.is_mutable:
                written += [_memory(tensor) for tensor in results if _memory(tensor) in before]
            if not written:
                return made  # a view
            stem = short.removesuffix("_like").rstrip("_")
            state = "nothing" if stem in _ALLOCATE else _moved(given, memory, written) if stem in _MOVE else "computed"
            read = before if not func._schema.is_mutable else before - {*written}
            if state != "nothing":
                foreign.extend(name for one in read if memory.get(one) == "nothing")
            if state == "computed" and stem not in _MOVE:
                torchs[f"{space}.{short}"] = None
            memory.update(dict.fromkeys(written, state))
            return made

    with Seen():
        returned = call()
    made = [_memory(tensor) for tensor in outputs(returned)]
    only = bool(torchs) and not others and not foreign and all(memory.get(one) == "computed" for one in made)
    return Calls(tuple(torchs)[:_MOST], tuple(others)[:_MOST], only)


def _moved(given: Iterable[Any], memory: dict[int, str], written: Iterable[int]) -> str:
    """What lies in memory that a call has moved something to."""
    sources = [memory.get(_memory(tensor), "moved") for tensor in given if _memory(tensor) not in written]
    return "computed" if "computed" in sources else "moved"


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
