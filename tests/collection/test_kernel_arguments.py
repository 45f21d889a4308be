"""Arguments of launches have the sizes of the kernel's parameters, where a struct is passed by value: without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from harness.ops import Catalogue, Context


@pytest.fixture(scope="module")
def tools():
    """test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location("kernels_of_arguments", Path(__file__).parent / "test_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def parameter_sizes(ptx: str) -> list[int]:
    """Bytes of each parameter in PTX: '.param .u64 name', or '.param .align 8 .b8 name[24]' for a struct."""
    declared = re.findall(r"\.param (?:\.\w+ )*(?:\.\w+ \d+ )?\.[bfsu](\d+) \w+_param_\d+(?:\[(\d+)\])?", ptx)
    return [int(bits) // 8 * int(count or 1) for bits, count in declared]


def launches(tools, monkeypatch, op, dtype) -> list[tuple[object, ...]]:
    """File, entry, macros and arguments of each launch of `tuned`."""
    seen = []

    def load(file, entry, macros):
        return tools.FakeKernel(lambda _grid, _block, *args, **_: seen.append((file, entry, macros, args)))

    tools.pretend_gpu(monkeypatch, load)
    for values in tools.told(op.name).COMPILED:
        variant, case = op.variants["tuned"], tools.case_of(op, "tuned", dtype, values)
        launch = variant.prepare(Context(case, None, None, tools.GENERATOR, op))
        inputs, outputs = op.tensors(variant)
        for tensors in tools.alignments(inputs + outputs, case.values, dtype):
            launch(tensors)
    return seen


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("prelu_grad", {"prelu_grad_tuned"}),
        ("bn_add_relu", {"bn_statistics_rows", "bn_statistics_columns", "bn_whole_few"}),
    ],
)
def test_a_struct_has_the_size_of_the_parameter(tools, ptx, monkeypatch, name, entries):
    import torch

    monkeypatch.setattr(torch, "empty", lambda *_, **__: tools.FakeTensor(4096, 0, 4))
    by_entry = {}
    for file, entry, macros, args in launches(tools, monkeypatch, Catalogue()[name], "float16"):
        by_entry.setdefault(entry, (file, macros, args))
    assert entries <= by_entry.keys()
    for entry in entries:
        file, macros, args = by_entry[entry]
        assert isinstance(args[-1], ctypes.Structure)
        passed = [8 if hasattr(arg, "data_ptr") else ctypes.sizeof(arg) for arg in args]
        assert passed == parameter_sizes(ptx(file.name, entry, macros)), entry
