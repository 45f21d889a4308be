"""Every kernel that an op can ask for compiles for every architecture, in registers, without a GPU."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from harness import cuda
from harness.cuda.compile import compile_verbose
from harness.model import Case, KernelFacts
from harness.ops import ITEMSIZE, Catalogue, Context, Op, Tensor, Tensors

MULTIPROCESSORS = 132
RESIDENT = MULTIPROCESSORS * 2048
SHARED_MEMORY = 227 * 1024
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
TESTS = Path(__file__).parents[1] / "ops"


@dataclass(frozen=True)
class Request:
    """A compilation that some launch asked for."""

    file: Path
    macros: tuple[tuple[str, str | int], ...]

    @property
    def name(self) -> str:
        return f"{self.file.stem} {' '.join(f'{name}={value}' for name, value in self.macros)}"


@dataclass
class FakeTensor:
    """Just the address and the size that a launch looks at: no memory, so any size goes."""

    address: int
    elements: int
    itemsize: int

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return self.itemsize


class FakeGenerator:
    def initial_seed(self) -> int:
        return 2**40 + 1


class FakeKernel:
    facts = KernelFacts("fake", 0, 0, 0)

    def __call__(self, *_: object, **__: object) -> None:
        pass

    def resident_clusters(self, *_: object) -> int:
        return 1


def told(op: str) -> ModuleType:
    """tests/ops/test_<op>.py, which tells of its kernels:

    COMPILED: shapes that together ask for every compilation that a launch may need.
    LOCAL_MEMORY (if there are any): variants that use local memory on purpose.
    SPILLED (if any): bytes that a thread may spill, where measurements say that one more block on an SM is worth it.
    """
    spec = importlib.util.spec_from_file_location(f"compiled_{op}", TESTS / f"test_{op}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def requests(monkeypatch: pytest.MonkeyPatch, op: Op, left_out: str = "") -> list[Request]:
    """What every CUDA variant compiles over dtypes but the one left out, shapes and alignments, by name."""
    module = told(op.name)
    others = {"memcpy", *getattr(module, "LOCAL_MEMORY", ())}
    own = [v for v in op.variants.values() if v.devices == ("cuda",) and v.name not in others]
    dtypes = [dtype for dtype in op.dtypes if dtype != left_out]
    cases = [
        Case(op.name, variant.name, dtype, tuple(shape.items()))
        for variant, dtype, shape in itertools.product(own, dtypes, module.COMPILED)
    ]
    return requested(monkeypatch, op, cases)


def requested(monkeypatch: pytest.MonkeyPatch, op: Op, cases: Iterable[Case]) -> list[Request]:
    """What these cases of the op compile, over alignments, by name."""
    found: set[Request] = set()

    def load(file: Path, _entry: str, macros: dict[str, str | int]) -> FakeKernel:
        found.add(Request(file, tuple(sorted(macros.items()))))
        return FakeKernel()

    monkeypatch.setattr(cuda, "load", load)
    monkeypatch.setattr(cuda, "resident_threads", lambda: RESIDENT)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: MULTIPROCESSORS)
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    monkeypatch.setattr(cuda, "shared_memory", lambda: SHARED_MEMORY)
    for case in cases:
        variant = op.variants[case.variant]
        if variant.unsupported and variant.unsupported(case):
            continue
        launch = variant.prepare(Context(case, None, None, FakeGenerator(), op))
        inputs, outputs = op.tensors(variant)
        for tensors in alignments(inputs + outputs, case.symbols, case.dtype):
            launch(tensors)
    return sorted(found, key=lambda request: request.name)


def alignments(declared: Sequence[Tensor], shape: dict[str, int], dtype: str) -> Iterator[Tensors]:
    for first, others in ((0, 0), (1, 1), (1, 0), (0, 1)):
        tensors = {}
        for place, tensor in enumerate(declared):
            size = ITEMSIZE[tensor.dtype_of(dtype)]
            shift = (first if place == 0 else others) * size
            tensors[tensor.name] = FakeTensor(4096 + shift, tensor.bytes(shape, dtype) // size, size)
        yield Tensors(**tensors)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("op", Catalogue().values(), ids=lambda op: op.name)
def test_all_kernels_compile_without_spills_or_local_memory(monkeypatch, op, arch):
    # Halves of both kinds need about the same; bfloat16 a register more, if anything.
    found = requests(monkeypatch, op, left_out="" if arch == "sm_90" else "float16")
    assert found
    allowed = getattr(told(op.name), "SPILLED", 0)
    wasteful = []
    for request in found:
        _, log = compile_verbose(request.file, dict(request.macros), arch)
        frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert frames, log
        if any(int(size) > allowed for frame in frames for size in frame):
            wasteful.append((request.name, frames))
        assert "warning" not in log, log
    assert not wasteful


def test_prelu_asks_for_all_its_ways(monkeypatch):
    found = requests(monkeypatch, Catalogue()["prelu"])
    assert any(("INDEX", "unsigned long long") in request.macros for request in found)
    assert any(("SHIFTED", 1) in request.macros for request in found)
    assert {value for request in found for name, value in request.macros if name == "PACKS"} == {1, 2}


def test_a_kernel_with_local_memory_would_be_noticed(tmp_path):
    source = tmp_path / "local.cu"
    source.write_text(
        'extern "C" __global__ void k(int* p, int n) {'
        " int a[64]; for (int i = 0; i < n; ++i) a[p[i] % 64] = i; p[0] = a[n % 64]; }"
    )
    _, log = compile_verbose(source, {}, "sm_90")
    assert not re.search(r"\b0 bytes stack frame", log)
