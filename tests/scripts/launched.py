"""Prints what cases of the scenario `ci` launch, with the harness that PYTHONPATH names: no GPU, just the compiler.

    PYTHONPATH=TREE python launched.py GLOB...

A JSON object: for each case its launches, each a list of the file's name, the entry, macros, grid, block, other
options, and a hash of the entry's machine code. That is its instructions alone: neither line numbers nor names of
folders.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness import scenario
from harness.cuda.compile import compile_verbose
from harness.model import Case
from harness.ops import Catalogue, Context, Op


def kernel_tests() -> ModuleType:
    """tests/cuda/test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location("kernels", Path(__file__).parents[1] / "cuda" / "test_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    spec.loader.exec_module(module)
    return module


def launches(kernels: ModuleType, op: Op, case: Case) -> list[list[Any]]:
    """What the case launches on aligned tensors, in order."""
    found: list[list[Any]] = []

    def load(file: Path, entry: str, macros: dict[str, str | int]) -> Any:
        def launched(grid: int | tuple[int, ...], block: int, *_: object, **options: int) -> None:
            code = machine_code(cubin(file, tuple(macros.items()), kernels.MEASURED), entry)
            found.append([file.name, entry, macros, grid, block, options, hashlib.sha256(code).hexdigest()])

        return kernels.FakeKernel(launched)

    variant = op.variants[case.variant]
    with pytest.MonkeyPatch.context() as patch:
        kernels.pretend_gpu(patch, load)
        launch = variant.prepare(Context(case, None, None, kernels.FakeGenerator(), op))
        inputs, outputs = op.tensors(variant)
        launch(next(kernels.alignments(inputs + outputs, case.symbols, case.dtype)))
    return found


@cache
def cubin(file: Path, macros: tuple[tuple[str, str | int], ...], arch: str) -> bytes:
    """A compilation, which several entries may share."""
    return compile_verbose(file, dict(macros), arch)[0]


def machine_code(cubin: bytes, entry: str) -> bytes:
    """The entry's section of a cubin, which is a 64-bit ELF file."""
    return next(content for name, content in sections(cubin) if name == f".text.{entry}")


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents, from the table of section headers, of which one has all names."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<2I4Q", elf, table + index * size) for index in range(count)]
    names = headers[of_names][4]
    for name, _, _, _, offset, length in headers:
        first = names + name
        yield elf[first : elf.index(b"\0", first)].decode(), elf[offset : offset + length]


def main(globs: list[str]) -> None:
    """Print what the cases that match launch."""
    kernels, catalogue = kernel_tests(), Catalogue()
    selection = scenario.Selection("cuda", only=tuple(globs))
    jobs = scenario.plan(scenario.load(scenario.find(["ci"]), catalogue), catalogue, selection).jobs
    print(json.dumps({job.case.id: launches(kernels, catalogue[job.case.op], job.case) for job in jobs}))


if __name__ == "__main__":
    main(sys.argv[1:])
