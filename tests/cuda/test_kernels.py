"""Every kernel that an op can ask for compiles for every architecture, in registers, without a GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import cuda
from harness.cuda.compile import compile_verbose
from harness.model import Case, KernelFacts
from harness.ops import ITEMSIZE, Catalogue, Context, Tensors

RESIDENT = 132 * 2048
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SHAPES = {
    "copy": [{"N": 1000}, {"N": 1001}],
    "prelu": [
        {"N": n, "C": c, "H": h, "W": w}
        for n, c, h, w in [
            # Each way that packs meet channels, at sizes for one pack a thread and for two, in halves and in floats.
            *[(n, 64, 8, 8) for n in (2, 400, 800)],
            *[(n, 3, 7, 7) for n in (2, 12_000, 24_000)],
            *[(n, 3, 1, 3) for n in (2, 200_000, 400_000)],
            *[(n, 1, 7, 7) for n in (2, 40_000, 80_000)],
            (2**17, 64, 16, 16),
            (2**29, 3, 1, 3),
        ]
    ],
}


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


class FakeKernel:
    facts = KernelFacts("fake", 0, 0, 0)

    def __call__(self, *_: object, **__: object) -> None:
        pass


def requests(monkeypatch: pytest.MonkeyPatch) -> set[Request]:
    """What every CUDA variant compiles over dtypes, shapes and alignments."""
    found: set[Request] = set()

    def load(file: Path, _entry: str, macros: dict[str, str | int]) -> FakeKernel:
        found.add(Request(file, tuple(sorted(macros.items()))))
        return FakeKernel()

    monkeypatch.setattr(cuda, "load", load)
    monkeypatch.setattr(cuda, "resident_threads", lambda: RESIDENT)
    for op in Catalogue().values():
        own = [v for v in op.variants.values() if v.devices == ("cuda",) and v.name != "memcpy"]
        assert op.name in SHAPES, f"add shapes of '{op.name}' to this test"
        for variant, dtype, shape in itertools.product(own, op.dtypes, SHAPES[op.name]):
            case = Case(op.name, variant.name, dtype, tuple(shape.items()))
            launch = variant.prepare(Context(case, None, None, None, op))
            for tensors in alignments(op.inputs + op.outputs, shape, dtype):
                launch(tensors)
    return found


def alignments(declared, shape: dict[str, int], dtype: str) -> Iterator[Tensors]:
    size = ITEMSIZE[dtype]
    for first, second in ((0, 0), (size, size), (size, 0), (0, size)):
        tensors = [
            (t.name, FakeTensor(4096 + (first if i == 0 else second), t.bytes(shape, dtype) // size, size))
            for i, t in enumerate(declared)
        ]
        yield Tensors(**dict(tensors))


def test_all_kernels_compile_without_spills_or_local_memory(monkeypatch):
    found = requests(monkeypatch)
    assert {request.file.stem for request in found} == {"copy", "prelu"}
    assert any(("INDEX", "unsigned long long") in request.macros for request in found)
    assert any(("SHIFTED", 1) in request.macros for request in found)
    assert {value for request in found for name, value in request.macros if name == "PACKS"} == {1, 2}
    wasteful = []
    for request, arch in itertools.product(sorted(found, key=lambda r: r.name), ARCHITECTURES):
        _, log = compile_verbose(request.file, dict(request.macros), arch)
        frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
        assert frames, log
        if any(int(size) for frame in frames for size in frame):
            wasteful.append((request.name, arch, frames))
        assert "warning" not in log, log
    assert not wasteful


def test_a_kernel_with_local_memory_would_be_noticed(tmp_path):
    source = tmp_path / "local.cu"
    source.write_text(
        'extern "C" __global__ void k(int* p, int n) {'
        " int a[64]; for (int i = 0; i < n; ++i) a[p[i] % 64] = i; p[0] = a[n % 64]; }"
    )
    _, log = compile_verbose(source, {}, "sm_90")
    assert not re.search(r"\b0 bytes stack frame", log)
