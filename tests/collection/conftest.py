"""What the tests of ops share: types, inputs, and calls of single variants on the GPU or the CPU without `measure`."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import check
from harness.collection.ops.dropout._dropout import Keep
from harness.collection.ops.dropout._philox import numbers
from harness.model import Case
from harness.ops import FLOATS, Catalogue, Context, Op, Tensors
from tests.rare import rare

if TYPE_CHECKING:
    import torch

    from tests.collection.compilations import Kernel

_ROOM = 64  # elements around a tensor that must stay as they are
_POISON = 0xA5


@pytest.fixture(params=[rare(name) if name == "bfloat16" else name for name in FLOATS])
def dtype(request: pytest.FixtureRequest) -> str:
    """Each type that an element-wise op has, in turn. float16 tells what bfloat16 does, and overflows besides."""
    return str(request.param)


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue()


def case_of(op: Op, variant: str, dtype: str, values: dict[str, Any], device: str = "cuda") -> Case:
    """A case with these sizes and choices; a choice that isn't given has the op's default."""
    shape = tuple((name, value) for name, value in values.items() if name not in op.choices)
    choices = tuple((name, values.get(name, choice.usual)) for name, choice in op.choices.items())
    return Case(op.name, variant, dtype, shape, choices, device=device)


@pytest.fixture(scope="session")
def launch(catalogue: Catalogue) -> Callable[..., Tensors]:
    """launch(op, variant, dtype, values, tensors...) prepares the variant on the GPU, calls it once and waits.

    values: sizes, and choices where they aren't the defaults. seed: of the case's random numbers. Tensors may be given
    as `placed` makes them: then nothing around them may have been written. Returns the tensors, for a variant that
    makes its own outputs with these.
    """
    import torch

    def call(op: str, variant: str, dtype: str, values: dict[str, Any], seed: int = 0, **given: Any) -> Tensors:
        tensors = {name: value.tensor if isinstance(value, Placed) else value for name, value in given.items()}
        case = case_of(catalogue[op], variant, dtype, values)
        place = torch.device("cuda")
        generator = torch.Generator(place).manual_seed(seed)
        ctx = Context(case, getattr(torch, dtype), place, generator, catalogue[op])
        chosen = catalogue[op].variants[variant]
        returned = chosen.prepare(ctx)(Tensors(**tensors))
        torch.cuda.synchronize()
        if chosen.returns:
            _, outputs = catalogue[op].tensors(chosen)
            tensors |= dict(zip((output.name for output in outputs), returned, strict=True))
        for value in given.values():
            if isinstance(value, Placed):
                value.assert_untouched_around()
        return Tensors(**tensors)

    return call


@dataclass(frozen=True)
class Placed:
    """A tensor that lies inside a larger, poisoned buffer."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    offset: int

    def assert_untouched_around(self) -> None:
        """Assert that nothing was written outside of the tensor."""
        import torch

        size = self.tensor.element_size()
        raw = self.buffer.view(torch.uint8)
        begin, end = self.offset * size, (self.offset + self.tensor.numel()) * size
        assert bool((raw[:begin] == _POISON).all()), "wrote before the tensor"
        assert bool((raw[end:] == _POISON).all()), "wrote after the tensor"


@pytest.fixture(scope="session")
def placed() -> Callable[..., Placed]:
    """placed(shape, dtype, offset=0) is a poisoned tensor on the GPU, `offset` elements past an aligned address."""
    import torch

    def place(shape: Sequence[int] | int, dtype: str, offset: int = 0) -> Placed:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = getattr(torch, dtype)
        count = math.prod(shape)
        buffer = torch.empty(count + _ROOM, device="cuda", dtype=kind)
        buffer.view(torch.uint8).fill_(_POISON)
        return Placed(buffer[offset : offset + count].view(shape), buffer, offset)

    return place


@pytest.fixture(scope="session")
def normal() -> Callable[..., torch.Tensor]:
    """normal(n, dtype, offset=0, seed=0): normal random numbers on the GPU, `offset` elements past an aligned address.

    The last one is the last one of its buffer.
    """
    import torch

    def make(n: int, dtype: str, offset: int = 0, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(seed)
        return torch.randn(n + offset, generator=generator, device="cuda", dtype=getattr(torch, dtype))[offset:]

    return make


@pytest.fixture(scope="session")
def any_bits() -> Callable[..., torch.Tensor]:
    """any_bits(n, dtype, offset=0): as `normal`, but any bits, not-a-numbers too, as integers of the dtype's size."""
    import torch

    def make(n: int, dtype: str, offset: int = 0) -> torch.Tensor:
        kind = torch.int32 if dtype == "float32" else torch.int16
        info = torch.iinfo(kind)
        generator = torch.Generator("cuda").manual_seed(n + offset)
        return torch.randint(info.min, info.max, (n + offset,), generator=generator, device="cuda", dtype=kind)[offset:]

    return make


@pytest.fixture(scope="session")
def special() -> Callable[[str], torch.Tensor]:
    """special(dtype) are 12 values on the GPU: not finite, zero, the largest, the smallest normal, a subnormal, 1."""
    import torch

    def make(dtype: str) -> torch.Tensor:
        kind = getattr(torch, dtype)
        big, small = torch.finfo(kind).max, torch.finfo(kind).tiny
        values = [math.inf, -math.inf, math.nan, 0.0, -0.0, big, -big, small, -small, small / 4, 1.0, -1.0]
        return torch.tensor(values, device="cuda", dtype=kind)

    return make


@pytest.fixture(scope="session")
def replay() -> Callable[..., torch.Tensor]:
    """replay(p, bits, seed, call, begin, end) is the mask that a kernel must draw for these elements."""
    import torch

    def draw(p: float, bits: int, seed: int, call: int, begin: int, end: int, device: str = "cuda") -> torch.Tensor:
        elements = torch.arange(begin, end, device=device)
        return numbers(seed, call, elements, bits) < Keep(p, bits).threshold

    return draw


@pytest.fixture(scope="session")
def optimizers_loaded() -> None:
    """Torch's optimizers import its compiler. What is there before the tests of a file isn't searched for garbage."""
    import torch._dynamo  # noqa: F401 - for what it leaves in memory


def leave_guards_unmeasured(patch: pytest.MonkeyPatch) -> None:
    """After each compilation, torch measures how long its guards take, for a log: 20 ms, with emptied caches."""
    patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0)


@pytest.fixture
def unmeasured_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests compile is compiled as ever, and in less time."""
    leave_guards_unmeasured(monkeypatch)


@contextmanager
def traced_only(device: torch.device) -> Iterator[None]:
    """torch.compile traces functions as ever, but on a CPU it runs what it traced without Inductor.

    Inductor writes C++ for a CPU, which takes 10 seconds to set up and isn't what a GPU runs.
    """
    import torch

    real = torch.compile

    def traced(*given: Any, **options: Any) -> Any:
        leave_guards_unmeasured(patch)
        return real(*given, backend="aot_eager", **options)

    with pytest.MonkeyPatch.context() as patch:
        if device.type == "cpu":
            patch.setattr(torch, "compile", traced)
        yield


@dataclass(frozen=True)
class Trial:
    """A case and its inputs."""

    ctx: Context
    inputs: Tensors

    def call(self) -> Tensors:
        """All tensors after a call of the variant, with outputs that were poisoned before."""
        op, variant = self.ctx.op, self.ctx.op.variants[self.ctx.case.variant]
        tensors = check.merged(self.inputs, check.make_outputs(self.ctx, variant))
        with traced_only(self.ctx.device):
            return check.collect(op, variant, tensors, variant.prepare(self.ctx)(tensors))

    def complaint(self, **written: torch.Tensor) -> str | None:
        """What the op's check says of these outputs."""
        variant = self.ctx.op.variants[self.ctx.case.variant]
        return check.complaint(self.ctx, variant, self.inputs, check.merged(self.inputs, Tensors(**written)))

    def complaint_after_call(self, change: Callable[[Tensors], Any] = lambda _: None) -> str | None:
        """What the op's check says of a call's outputs, `change` of which was made."""
        after = self.call()
        change(after)
        return self.complaint(**vars(after))


@pytest.fixture(scope="session")
def trial(catalogue: Catalogue) -> Callable[..., Trial]:
    """trial(op, variant, dtype, sizes and choices...): a case with its inputs on the CPU, or on another `device`."""
    import torch

    def make(op: str, variant: str, dtype: str, device: str = "cpu", seed: int = 1, **values: Any) -> Trial:
        case = case_of(catalogue[op], variant, dtype, values, device)
        generator = torch.Generator(device).manual_seed(seed)
        ctx = Context(case, getattr(torch, dtype), torch.device(device), generator, catalogue[op])
        return Trial(ctx, check.make_inputs(ctx))

    return make


@pytest.fixture(scope="session")
def kept(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that keeps what was compiled: in pytest's cache, if pytest has one."""
    from tests.collection import compilations

    if not hasattr(pytestconfig, "cache"):
        return tmp_path_factory.mktemp("kernels")
    return compilations.kept(Path(pytestconfig.cache.mkdir("kernels")))


@pytest.fixture(scope="session")
def emulated_folder(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that keeps kernels for the CPU (emulation.py), in the same way."""
    from tests.collection import compilations

    if not hasattr(pytestconfig, "cache"):
        return tmp_path_factory.mktemp("emulated")
    return compilations.kept(Path(pytestconfig.cache.mkdir("emulated")))


@pytest.fixture(scope="session")
def compiled(kept: Path) -> Callable[..., dict[str, Kernel]]:
    """compiled(file, macros, arch): what each kernel of a source uses, by its name. Compiles only what changed."""
    from harness.paths import data
    from tests.collection.compilations import Compilation

    def facts(file: str, macros: dict[str, str | int], arch: str = "sm_90") -> dict[str, Kernel]:
        (source,) = data("kernels").glob(f"*/{file}")
        found = Compilation(source, tuple(macros.items()), arch).result(kept)
        assert found
        return found

    return facts


@pytest.fixture(scope="session")
def ptx(kept: Path) -> Callable[..., str]:
    """ptx(file, entry, macros) is a kernel in PTX for sm_90: the reads, writes and branches that the compiler has left.

    Needs no GPU. Compiles only what changed.
    """
    from harness.paths import data
    from tests.collection.compilations import Compilation

    def text(file: str, entry: str, macros: dict[str, str | int]) -> str:
        (source,) = data("kernels").glob(f"*/{file}")
        return Compilation(source, tuple(macros.items()), "sm_90").ptx(entry, kept)

    return text


@pytest.fixture(scope="session")
def accesses_of_packs(ptx: Callable[..., str]) -> Callable[..., list[str]]:
    """accesses_of_packs(file, entry, macros): what a thread with a whole pack loads and stores, such as 'ld.nc.v4'.

    Fails unless they are in one piece of code without a branch. A load behind a branch waits for the one before it.
    """

    def accesses(file: str, entry: str, macros: dict[str, str | int]) -> list[str]:
        pieces = re.split(r"\n\$L\w+:|\bbra[^\n]*", ptx(file, entry, macros))
        found = [re.findall(r"\b(ld|st)\.global(\.nc)?(?:\.L\w+)*(\.v\d)?\.\w\d+", piece) for piece in pieces]
        (of_packs,) = [every for every in found if any(width == ".v4" for *_, width in every)]
        return ["".join(access) for access in of_packs]

    return accesses


@pytest.fixture(scope="session")
def machine_code() -> Callable[..., dict[str, bytes]]:
    """machine_code(file, macros) are the instructions of each kernel of a file for sm_90, by name; needs no GPU."""
    from harness.cuda.compile import compile_verbose
    from harness.paths import data

    def instructions(file: str, macros: dict[str, str | int]) -> dict[str, bytes]:
        elf, _ = compile_verbose(next(data("kernels").glob(f"*/{file}")), macros, "sm_90")
        # The sections of a 64-bit ELF file; one of them has the names of all.
        (table,) = struct.unpack_from("<Q", elf, 40)
        size, count, of_names = struct.unpack_from("<3H", elf, 58)
        headers = [struct.unpack_from("<2I4Q", elf, table + index * size) for index in range(count)]
        begins = [headers[of_names][4] + header[0] for header in headers]
        names = [elf[begin : elf.index(b"\0", begin)].decode() for begin in begins]
        return {
            name.removeprefix(".text."): elf[offset : offset + length]
            for name, (*_, offset, length) in zip(names, headers, strict=True)
            if name.startswith(".text.")
        }

    return instructions
