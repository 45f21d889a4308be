"""What an op can ask for compiles, in registers, without a GPU: all of it for sm_90, some of each kind elsewhere.

Only what changed is compiled again: see compilations.py.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness import cuda
from harness.collection.ops.rows import _wide_clusters
from harness.cuda import cublaslt
from harness.model import Case, KernelFacts
from harness.ops import ITEMSIZE, Catalogue, Context, Op, Symbols, Tensor, Tensors
from tests.collection import compilations
from tests.collection.compilations import Compilation
from tests.rare import rare

# The GPU that everything is measured on, whose plans are compiled for the other GPUs too.
MULTIPROCESSORS = 132
RESIDENT = MULTIPROCESSORS * 2048
SHARED_MEMORY = 227 * 1024
REGISTERS = 65_536  # of a multiprocessor
OLDEST, MEASURED = "sm_80", "sm_90"
ARCHITECTURES = (OLDEST, "sm_89", MEASURED, "sm_100", "sm_120")
MANY = 10  # compilations of an op, in all of its types
HUNGRIEST = 5  # compilations with other numbers, which take most registers
TESTS = Path(__file__).parent
GENERATOR = SimpleNamespace(initial_seed=lambda: 2**40 + 1)


@dataclass(frozen=True)
class Request:
    """A compilation that some launch asked for."""

    file: Path
    macros: tuple[tuple[str, str | int], ...]

    @property
    def name(self) -> str:
        return f"{self.file.stem} {' '.join(f'{name}={value}' for name, value in self.macros)}"

    def compiled(self, arch: str) -> Compilation:
        return Compilation(self.file, self.macros, arch)

    @cached_property
    def kind(self) -> tuple[Path, tuple[str, ...]]:
        """Requests of a kind differ in the values of their macros only."""
        return self.file, tuple(name for name, _ in self.macros)


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

    def __getitem__(self, _part: slice) -> FakeTensor:
        """A part of it, of which a launch may ask the same."""
        return self


@dataclass
class FakeKernel:
    """launched: told of each launch."""

    launched: Callable[..., None] = lambda *_, **__: None
    facts = KernelFacts("fake", 0, 0, 0)

    def __call__(self, *arguments: object, **options: object) -> None:
        self.launched(*arguments, **options)

    def resident_clusters(self, *_: object) -> int:
        return 1000


class FakeMatmul:
    """A matrix product of cuBLASLt, which compiles nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        self.close = lambda: None

    def __call__(self, *_: object, **__: object) -> None:
        pass


@cache
def told(op: str) -> ModuleType:
    """tests/collection/ops/<family>/test_<op>.py, which tells of its kernels:

    COMPILED: sizes and choices that together ask for every compilation that a launch may need.
    LOCAL_MEMORY (if there are any): variants that use local memory on purpose.
    SPILLED (if any): bytes that a thread may spill, where measurements say that one more block on an SM is worth it.
    """
    file = next(TESTS.rglob(f"test_{op}.py"), None)
    assert file, f"op '{op}' has no file of tests: add tests/collection/ops/<family>/test_{op}.py, with COMPILED in it"
    spec = importlib.util.spec_from_file_location(f"compiled_{op}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert hasattr(module, "COMPILED"), f"{file} has no COMPILED: sizes and choices that ask for every compilation"
    return module


def requests(monkeypatch: pytest.MonkeyPatch, op: Op, dtypes: Sequence[str]) -> list[Request]:
    """What every variant with kernels of ours compiles over these dtypes, values and alignments, by name."""
    module = told(op.name)
    on_purpose = getattr(module, "LOCAL_MEMORY", ())
    own = [v for v in op.variants.values() if not v.is_library and v.name not in on_purpose]
    cases = [
        case_of(op, variant.name, dtype, values)
        for variant, dtype, values in itertools.product(own, dtypes, module.COMPILED)
    ]
    return requested(monkeypatch, op, cases)


def case_of(op: Op, variant: str, dtype: str, values: dict[str, Any]) -> Case:
    """A case with these sizes and choices; a choice that isn't given has the op's default."""
    shape = tuple((name, value) for name, value in values.items() if name not in op.choices)
    choices = tuple((name, values.get(name, choice.usual)) for name, choice in op.choices.items())
    return Case(op.name, variant, dtype, shape, choices)


def requested(monkeypatch: pytest.MonkeyPatch, op: Op, cases: Iterable[Case]) -> list[Request]:
    """What these cases of the op compile, over alignments, by name."""
    found: set[Request] = set()

    def load(file: Path, _entry: str, macros: dict[str, str | int]) -> FakeKernel:
        found.add(Request(file, tuple(sorted(macros.items()))))
        return FakeKernel()

    pretend_gpu(monkeypatch, load)
    for case in cases:
        variant = op.variants[case.variant]
        if variant.unsupported and variant.unsupported(case):
            continue
        launch = variant.prepare(Context(case, None, None, GENERATOR, op))
        inputs, outputs = op.tensors(variant)
        for tensors in alignments(inputs + outputs, case.values, case.dtype):
            launch(tensors)
    return sorted(found, key=lambda request: request.name)


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, load: Callable[..., FakeKernel]) -> None:
    """Answer as the GPU that everything is measured on does, and give the kernels of `load`."""
    monkeypatch.setattr(_wide_clusters, "_allowed", lambda _: True)
    monkeypatch.setattr(cuda, "load", load)
    monkeypatch.setattr(cuda, "resident_threads", lambda: RESIDENT)
    monkeypatch.setattr(cuda, "multiprocessors", lambda: MULTIPROCESSORS)
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    monkeypatch.setattr(cuda, "shared_memory", lambda: SHARED_MEMORY)
    monkeypatch.setattr(cublaslt, "obstacle", lambda _product: None)
    monkeypatch.setattr(cublaslt, "Matmul", FakeMatmul)


def alignments(declared: Sequence[Tensor], values: Symbols, dtype: str) -> Iterator[Tensors]:
    for first, others in ((0, 0), (1, 1), (1, 0), (0, 1)):
        tensors = {}
        for place, tensor in enumerate(declared):
            size = ITEMSIZE[tensor.dtype_of(dtype)]
            shift = (first if place == 0 else others) * size
            fakes = [FakeTensor(4096 + shift, math.prod(shape), size) for shape in tensor.shapes(values)]
            tensors[tensor.name] = fakes if tensor.is_list(values) else fakes[0]
        yield Tensors(**tensors)


def representatives(found: Sequence[Request], *, numbers: bool = True) -> list[Request]:
    """Few of them that together have every kind, and in each kind every value of each macro.

    numbers: also of macros that are numbers, not just a choice.
    """
    every = [(request, seen(request, numbers=numbers), appetite(request)) for request in found]
    missing = {one for _, own, _ in every for one in own}
    few = []
    while missing:
        best, own, _ = max(every, key=lambda one: (len(one[1] & missing), one[2]))
        few.append(best)
        missing -= own
    return few


def seen(request: Request, *, numbers: bool) -> set[tuple[object, ...]]:
    return {
        (request.kind, *macro)
        for macro in ((), *request.macros)
        if numbers or not macro or macro[1] in (0, 1) or isinstance(macro[1], str)
    }


def appetite(request: Request) -> int:
    """Roughly, how short of registers a block is: more elements and threads, 64-bit indexes, one more for bfloat16."""
    values = [value for _, value in request.macros]
    numbers = math.prod(max(1, value) for value in values if isinstance(value, int))
    return 4 * numbers * (1 + ("unsigned long long" in values)) + ("__nv_bfloat16" in values)


def chosen(found: Sequence[Request], arch: str) -> Sequence[Request]:
    """What is compiled for a test: everything for the GPU of the measurements, unless that is a lot; less for others.

    If it is a lot: requests that together have every kind, and the hungriest requests with other numbers. For the
    oldest GPU, which may lack an instruction: every kind. For the others: the hungriest request of each kind. Other
    types are left out if there is bfloat16, which needs the most registers.
    """
    if arch == MEASURED and len(found) <= MANY:
        return found
    hungriest = ("SCALAR", "__nv_bfloat16")
    if any(hungriest in request.macros for request in found):
        found = [r for r in found if hungriest in r.macros or "SCALAR" not in dict(r.macros)]
    few = representatives(found, numbers=False)
    if arch not in (OLDEST, MEASURED):  # a dict keeps the last value of a key
        few = list({request.kind: request for request in sorted(few, key=appetite)}.values())
    if arch == MEASURED:
        more = (request for request in representatives(found) if request not in few)
        few += sorted(more, key=appetite, reverse=True)[:HUNGRIEST]
    return few


# Whole steps launch the kernels of other ops; collectives launch kernels of a library.
WITHOUT = ("collectives", "pipeline", "training", "decoding")
WITH_KERNELS = [op for op in Catalogue().values() if op.file.parent.name not in WITHOUT]


@pytest.fixture(scope="module")
def every() -> Callable[[Op], list[Request]]:
    """every(op): all that an op asks for. It is the same for every architecture, so it is found once."""

    @cache
    def of(number: int) -> list[Request]:
        with pytest.MonkeyPatch.context() as patch:
            return requests(patch, WITH_KERNELS[number], WITH_KERNELS[number].dtypes)

    return lambda op: of(WITH_KERNELS.index(op))


@pytest.mark.parametrize("arch", [arch if arch == MEASURED else rare(arch) for arch in ARCHITECTURES])
@pytest.mark.parametrize("op", WITH_KERNELS, ids=lambda op: op.name)
def test_all_kernels_compile_without_spills_or_local_memory(every, kept, op, arch):
    found = chosen(every(op), arch)
    assert found, f"no variant of '{op.name}' compiled a kernel at the sizes in COMPILED of its tests"
    allowed = getattr(told(op.name), "SPILLED", 0)
    results = {request.name: request.compiled(arch).result(kept) for request in found}
    assert all(results.values())
    made = [(request, *kernel) for request in found for kernel in results[request.name].items()]
    # Plans are made for GPUs that were measured: elsewhere some threads spill, but every kernel can be launched.
    if arch not in compilations.FEWER_THREADS:
        assert [one for one in made if one[2].local_bytes > allowed] == []
    threads = [(request, int(dict(request.macros).get("THREADS", 0)), kernel.registers) for request, _, kernel in made]
    assert [one for one in threads if one[1] * one[2] > REGISTERS] == []


def all_compilations() -> list[Compilation]:
    """All that the test above compiles."""
    with pytest.MonkeyPatch.context() as patch:
        asked = [requests(patch, op, op.dtypes) for op in WITH_KERNELS]
    return [request.compiled(arch) for found in asked for arch in ARCHITECTURES for request in chosen(found, arch)]


def test_what_is_committed_is_of_the_kernels_as_they_are(every):
    """Otherwise the tests would be slow, and the committed registers wrong."""
    asked = [(op, arch) for op in WITH_KERNELS for arch in ARCHITECTURES]
    keys = {request.compiled(arch).key for op, arch in asked for request in chosen(every(op), arch)}
    written = {*compilations.committed()}
    if not any(key.startswith(compilations.compiler_version()) for key in written):
        pytest.skip("what is committed was made by another compiler")
    assert keys == written, "run scripts/make_compiled.py, and look at the registers that change"


def test_an_op_that_does_not_say_what_to_compile_is_told_what_to_add(monkeypatch, tmp_path):
    monkeypatch.setitem(globals(), "TESTS", tmp_path)
    for said in ("add tests/collection/ops/", "has no COMPILED"):
        with pytest.raises(AssertionError, match=said):
            told("mine")
        (tmp_path / "test_mine.py").touch()


def test_few_requests_represent_many():
    one, other = Path("one.cu"), Path("other.cu")
    found = [Request(one, (("A", a), ("B", b))) for a in (1, 2, 3) for b in ("x", "y")]
    found += [Request(one, (("A", 4),)), Request(other, (("A", 1), ("B", "x"))), Request(other, ())]
    few = representatives(found)
    assert len(few) == 6
    assert {(request.kind, *macro) for request in few for macro in request.macros} == {
        *((found[0].kind, "A", a) for a in (1, 2, 3)),
        *((found[0].kind, "B", b) for b in ("x", "y")),
        *((request.kind, *macro) for request in found[-3:] for macro in request.macros),
    }
    assert found[-1] in few


def test_choices_need_no_more_than_the_hungriest_of_their_numbers():
    found = [Request(Path("one.cu"), (("COUNT", count), ("WHOLE", whole))) for count in (2, 4, 8) for whole in (0, 1)]
    assert {request.macros for request in representatives(found, numbers=False)} == {
        (("COUNT", 8), ("WHOLE", 0)),
        (("COUNT", 8), ("WHOLE", 1)),
    }


def test_the_hungriest_represents_the_others():
    found = [
        Request(Path("one.cu"), (("INDEX", index), ("SCALAR", scalar), ("THREADS", threads)))
        for index in ("unsigned", "unsigned long long")
        for scalar in ("__nv_bfloat16", "float")
        for threads in (128, 256)
    ]
    assert [value for _, value in representatives(found)[0].macros] == ["unsigned long long", "__nv_bfloat16", 256]
    assert chosen(found, "sm_120") == representatives(found)[:1]


def test_prelu_asks_for_all_its_ways(monkeypatch):
    op = Catalogue()["prelu"]
    found = requests(monkeypatch, op, op.dtypes)
    assert any(("INDEX", "unsigned long long") in request.macros for request in found)
    assert any(("SHIFTED", 1) in request.macros for request in found)
    assert {value for request in found for name, value in request.macros if name == "PACKS"} == {1, 2}
