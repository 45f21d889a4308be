"""A candidate without Python: kernels and launch parameters in a manifest, so that no code of its own runs on the host.

    {
      "source": "twice.cu",
      "macros": {"ELEMENT": {"float32": "float", "float16": "__half"}},
      "scratch": {"sums": {"shape": ["cdiv(N, 256)"], "dtype": "float32"}},
      "kernels": [
        {"entry": "twice", "grid": ["cdiv(N, 256)"], "block": 256, "shared": 0, "arguments": ["x", "y", {"int64": "N"}]}
      ]
    }

source: a file of CUDA C++ beside the manifest, or of machine code, whose name ends in .cubin. macros: what the compiler
is given, alike for all dtypes or by dtype. scratch: memory that the kernels use between them. kernels: launched in
order. grid has up to three sizes; sizes, `block`, `shared` (dynamic bytes) and integers among the arguments are
expressions of the case's sizes. An argument is a tensor's name, or a type with its value: int32, int64, uint32, uint64,
or float32, whose value is a number or the name of a choice. `macros`, `scratch` and `shared` may be left out.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import cuda, foreign
from harness.errors import InputError, Problem, UsageError, nearest
from harness.expressions import ALLOWED, MalformedError, evaluate, symbols_in
from harness.judge.records import CANDIDATE, Sheet
from harness.ops import ITEMSIZE, Context, Launch, Op, Tensors

CODE = "candidate"
"""The name of the file with the kernels, beside the plug-in; its suffix is the suffix of the candidate's file."""
SUFFIXES = (".cu", ".cubin")
_INTEGERS: dict[str, Callable[[int], Any]] = {
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64,
}  # fmt: skip
_FLOAT = "float32"
_KEYS = {"source": True, "kernels": True, "macros": False, "scratch": False}
_OF_KERNEL = {"entry": True, "grid": True, "block": True, "arguments": True, "shared": False}
_MOST_BYTES = 16 << 20
_MOST_KERNELS = 64
_LONGEST_GRID = 3


def read(file: Path) -> dict[str, Any]:
    """The manifest in a file. Raises UsageError where it isn't JSON."""
    try:
        return parsed(foreign.read(file, _MOST_BYTES), str(file))
    except OSError as error:
        raise UsageError(f"{file}: can't be read: {error.strerror or error}", "name a manifest") from None


def parsed(text: str | bytes, where: str) -> dict[str, Any]:
    """The manifest in a text. Raises InputError with all that is wrong in it, but for what depends on the op."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: isn't JSON: {error}", "harness/judge/isolated.py shows a manifest") from None
    if problems := [Problem(f"{where}: {place}", *rest) for place, *rest in _problems(found)]:
        raise InputError(problems)
    return dict(found)


def code(manifest: Mapping[str, Any], beside: Path) -> Path:
    """The file with the kernels. Raises UsageError where there is none, or it isn't beside the manifest."""
    file: Path = (beside.parent / manifest["source"]).resolve()
    if not file.is_relative_to(beside.parent.resolve()) or not file.is_file():
        raise UsageError(
            f"{beside}: source: there is no file '{manifest['source']}' beside it", "name one that is there"
        )
    return file


def _problems(found: Any) -> Iterator[tuple[str, ...]]:
    """Each place where something is wrong, what is wrong, and what is allowed."""
    yield from _keys("the manifest", found, _KEYS)
    if not isinstance(found, dict):
        return
    source = found.get("source", "k.cu")
    if not isinstance(source, str) or Path(source).suffix not in SUFFIXES:
        yield "source", "isn't the name of a file", f"a name ends in {' or '.join(SUFFIXES)}"
    if not _are_macros(found.get("macros", {})):
        yield "macros", "aren't macros", "a name with a text or an integer, or with one for each dtype"
    scratch = found.get("scratch", {})
    if not isinstance(scratch, dict) or not all(map(_is_tensor, scratch.values())):
        yield "scratch", "isn't scratch memory", 'for example {"sums": {"shape": ["M"], "dtype": "float32"}}'
    kernels = found.get("kernels", [])
    if not isinstance(kernels, list) or not 1 <= len(kernels) <= _MOST_KERNELS:
        yield "kernels", "isn't a list of kernels", f"1 to {_MOST_KERNELS} are allowed"
        return
    for number, kernel in enumerate(kernels):
        yield from _of_kernel(f"kernels[{number}]", kernel)


def _of_kernel(place: str, kernel: Any) -> Iterator[tuple[str, ...]]:
    yield from _keys(place, kernel, _OF_KERNEL)
    if not isinstance(kernel, dict):
        return
    if not isinstance(kernel.get("entry", ""), str):
        yield f"{place}.entry", "isn't the name of a kernel", 'a kernel is declared extern "C"'
    grid = kernel.get("grid", [1])
    if not isinstance(grid, list) or not 1 <= len(grid) <= _LONGEST_GRID or not all(map(_is_expression, grid)):
        yield f"{place}.grid", "isn't a grid", f"a list of one to three expressions ({ALLOWED})"
    for name in ("block", "shared"):
        if not _is_expression(kernel.get(name, 1)):
            yield f"{place}.{name}", "isn't an expression", ALLOWED
    arguments = kernel.get("arguments", [])
    if not isinstance(arguments, list):
        yield f"{place}.arguments", "isn't a list", "names of tensors, and types with values"
        return
    for number, argument in enumerate(arguments):
        if not _is_argument(argument):
            types = ", ".join((*_INTEGERS, _FLOAT))
            yield (
                f"{place}.arguments[{number}]",
                "isn't an argument",
                f"a tensor's name, or one of {types} with its value",
            )


def _keys(place: str, found: Any, allowed: Mapping[str, bool]) -> Iterator[tuple[str, ...]]:
    if not isinstance(found, dict):
        yield place, "isn't a mapping", f"its keys are {', '.join(allowed)}"
        return
    for key in found.keys() - allowed.keys():
        yield place, f"has the key '{key}'", nearest(key, allowed)
    for key in (key for key, needed in allowed.items() if needed and key not in found):
        yield place, f"has no '{key}'", "add it"


def _are_macros(found: Any) -> bool:
    def value(one: Any) -> bool:
        return isinstance(one, str | int) and not isinstance(one, bool)

    return isinstance(found, dict) and all(
        name.isidentifier()
        and (value(one) or (isinstance(one, dict) and one.keys() <= ITEMSIZE.keys() and all(map(value, one.values()))))
        for name, one in found.items()
    )


def _is_tensor(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {"shape", "dtype"}
        and isinstance(found["dtype"], str)
        and found["dtype"] in ITEMSIZE
        and isinstance(found["shape"], list)
        and all(map(_is_expression, found["shape"]))
    )


def _is_expression(found: Any) -> bool:
    if isinstance(found, bool) or not isinstance(found, str | int):
        return False
    try:
        evaluate(found, dict.fromkeys(symbols_in(found), 1))
    except MalformedError:
        return False
    except ValueError:  # what only sizes of 1 break
        return True
    return True


def _is_argument(found: Any) -> bool:
    if isinstance(found, str):
        return True
    if not isinstance(found, dict) or len(found) != 1:
        return False
    ((kind, value),) = found.items()
    if kind in _INTEGERS:
        return _is_expression(value)
    return kind == _FLOAT and isinstance(value, str | int | float) and not isinstance(value, bool)


# ---- The variant.


def add(op: Op, sheet: Sheet) -> None:
    """Add the manifest's variant to an op. Raises InputError for names that the op doesn't have."""
    manifest = sheet.options["manifest"]
    if sheet.cases and sheet.cases[0].weights:
        advice = "judge it without --isolated, or give the weights as inputs"
        raise UsageError("a manifest can't name the weights of a model", advice)
    refuse(op, manifest, sheet.candidate)

    def prepare(ctx: Context) -> Launch:
        return _launch(ctx, manifest)

    op.variant(CANDIDATE, "what is judged: kernels and launch parameters alone", devices=("cuda",))(prepare)


def refuse(op: Op, manifest: Mapping[str, Any], where: str) -> None:
    """Raise InputError with all names in a manifest that the op doesn't have. where: the manifest's file."""
    if problems := [Problem(f"{where}: {place}", *rest) for place, *rest in _unknown(op, manifest)]:
        raise InputError(problems)


def _unknown(op: Op, manifest: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    tensors = {tensor.name for tensor in (*op.inputs, *op.outputs)} | manifest.get("scratch", {}).keys()
    values = {"world", *op.symbols, *op.choices}
    for number, kernel in enumerate(manifest["kernels"]):
        place = f"kernels[{number}]"
        for argument in kernel["arguments"]:
            if isinstance(argument, str) and argument not in tensors:
                yield (
                    place,
                    f"has the argument '{argument}', which is no tensor of op '{op.name}'",
                    nearest(argument, tensors),
                )
        numbers = [value for one in kernel["arguments"] if isinstance(one, dict) for value in one.values()]
        texts = [one for one in numbers if isinstance(one, str | int)]
        for text in (*kernel["grid"], kernel["block"], kernel.get("shared", 0), *texts):
            for name in sorted(symbols_in(text) - values):
                yield place, f"uses '{name}', which op '{op.name}' doesn't have", nearest(name, values)
    for name, one in manifest.get("scratch", {}).items():
        for size in one["shape"]:
            for unknown in sorted(symbols_in(size) - values):
                yield (
                    f"scratch.{name}",
                    f"uses '{unknown}', which op '{op.name}' doesn't have",
                    nearest(unknown, values),
                )


def _launch(ctx: Context, manifest: Mapping[str, Any]) -> Launch:
    """The launches of a case, whose sizes are known now."""
    import torch

    values = ctx.case.values
    scratch = {
        name: torch.empty(
            [evaluate(size, values) for size in one["shape"]], dtype=getattr(torch, one["dtype"]), device=ctx.device
        )
        for name, one in manifest.get("scratch", {}).items()
    }
    steps = [
        (
            _kernel(ctx, manifest, kernel["entry"]),
            tuple(evaluate(size, values) for size in kernel["grid"]),
            evaluate(kernel["block"], values),
            evaluate(kernel.get("shared", 0), values),
            [_argument(one, values, scratch) for one in kernel["arguments"]],
        )
        for kernel in manifest["kernels"]
    ]

    def launch(t: Tensors) -> None:
        for kernel, grid, block, shared, arguments in steps:
            given = [getattr(t, one) if isinstance(one, str) else one for one in arguments]
            kernel(grid, block, *given, shared=shared)

    return launch


def _kernel(ctx: Context, manifest: Mapping[str, Any], entry: str) -> Any:
    file = f"{CODE}{Path(manifest['source']).suffix}"
    if file.endswith(".cubin"):
        kernel = cuda.Kernel(ctx.op.find(file, ctx.op.variants[CANDIDATE].file).read_bytes(), entry)
        ctx.kernels.append(kernel.facts)
        return kernel
    macros = {
        name: value.get(ctx.case.dtype, "") if isinstance(value, dict) else value
        for name, value in manifest.get("macros", {}).items()
    }
    return ctx.kernel(file, entry, macros)


def _argument(one: Any, values: Mapping[str, Any], scratch: Mapping[str, Any]) -> Any:
    """A tensor's name, a tensor of the scratch memory, or a number as the kernel takes it."""
    if isinstance(one, str):
        return scratch.get(one, one)
    ((kind, value),) = one.items()
    if kind == _FLOAT:
        return ctypes.c_float(float(values[value] if isinstance(value, str) else value))
    return _INTEGERS[kind](evaluate(value, values))
