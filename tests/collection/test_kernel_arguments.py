"""Arguments of launches have the sizes of the kernel's parameters, where a struct is passed by value: without a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
from pathlib import Path

import pytest

from harness.cuda import compile as compiler
from harness.ops import Catalogue, Context
from tests.collection.compilations import sections

PARAMETER, OF_SIZED_RECORD = 0x17, 4  # EIATTR_KPARAM_INFO and EIFMT_SVAL of a cubin's .nv.info


@pytest.fixture(scope="module")
def tools():
    """test_kernels.py, which knows how to prepare launches where there is no GPU."""
    spec = importlib.util.spec_from_file_location("kernels_of_arguments", Path(__file__).parent / "test_kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def parameter_sizes(info: bytes) -> list[int]:
    """Bytes of each parameter, from the section .nv.info.<entry>: records of a format, an attribute and 2 bytes."""
    found, at = {}, 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == OF_SIZED_RECORD and attribute == PARAMETER:
            _, number, _, flags = struct.unpack_from("<IHHI", info, at + 4)
            found[number] = flags >> 18
        at += 4 + (size if form == OF_SIZED_RECORD else 0)
    return [found[number] for number in range(len(found))]


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
    [("prelu_grad", {"prelu_grad_tuned"}), ("bn_add_relu", {"bn_statistics_rows", "bn_statistics_columns"})],
)
def test_a_struct_has_the_size_of_the_parameter(tools, monkeypatch, name, entries):
    import torch

    monkeypatch.setattr(torch, "empty", lambda *_, **__: tools.FakeTensor(4096, 0, 4))
    by_entry = {}
    for file, entry, macros, args in launches(tools, monkeypatch, Catalogue()[name], "float16"):
        by_entry.setdefault(entry, (file, macros, args))
    assert entries <= by_entry.keys()
    for entry in entries:
        file, macros, args = by_entry[entry]
        assert isinstance(args[-1], ctypes.Structure)
        cubin, _ = compiler.compile_verbose(file, macros, tools.MEASURED)
        (info,) = (content for section, content in sections(cubin) if section == f".nv.info.{entry}")
        passed = [8 if hasattr(arg, "data_ptr") else ctypes.sizeof(arg) for arg in args]
        assert passed == parameter_sizes(info), entry
