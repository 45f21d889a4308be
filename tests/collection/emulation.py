"""Kernels on a CPU: a source is compiled by a C++ compiler, and its threads run as fibers (emulated/emulated.h).

What it shows: indices, barriers, shuffles, clusters, bytes that nobody wrote, and accesses outside of a tensor, since
tensors lie between pages that can't be read. What it doesn't show: speed, and what only hardware does, such as the
order of accesses to memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness import check, cuda
from harness.collection.ops.rows import _wide_clusters
from harness.model import Case, KernelFacts
from harness.ops import Context, Op, Plan, Tensors
from harness.paths import data

HEADER = Path(__file__).with_name("emulated") / "emulated.h"
INSTRUCTIONS = {
    "rsqrt.approx.ftz.f32": "rsqrt",
    "rcp.approx.f32": "wide_reciprocal",
    "rcp.approx.ftz.f32": "reciprocal",
    "ex2.approx.ftz.f32": "exp2",
    "lg2.approx.ftz.f32": "log2",
    "st.global.v4": "store_words",
    "st.shared.f32": "store_shared",
    "st.shared.b32": "store_shared",
    "st.shared.b16": "store_shared",
    "st.shared.v4.b32": "store_four_shared",
    "ld.shared.b32": "load_shared",
    "ld.shared.f32": "load_shared",
    "ld.shared.v4": "load_shared",
    "cvt.pack.sat.s8.s32.b32": "pack_bytes",
    "prmt.b32 %0, %1, 0, 0xbb99": "spread_signs",
    "ld.global.nc.L1::no_allocate.v": "load_words",
    "ld.global.nc.v4": "load_words",
    "cp.async.ca": "copy",
    "cp.async.cg": "copy",
    "cp.async.commit_group": "close_copies",
    "cp.async.wait_group": "wait_for_copies",
    "cp.async.wait_all": "wait_for_all_copies",
    "cp.async.bulk.shared": "copy_bulk",
    "cp.async.bulk.prefetch.L2": "touch",
    "prefetch.global.L2": "touch",
    "bar.sync": "sync_some",
    "mapa": "map_to",
    "atom.add.acq_rel.gpu.global.u32": "add_in_turn",
    "st.async": "send",
    "mbarrier.init": "barrier_init",
    "mbarrier.arrive.expect_tx": "barrier_expect",
    "{ .reg .pred p; mbarrier.try_wait": "barrier_try",
    "{ .reg .pred p; setp.ne.u32": "load_if",
    "ld.shared::cluster.s32": "load_shared",
    "ld.shared::cluster.f32": "load_shared",
    "ldmatrix.sync.aligned.m8n8.x4.shared": "load_matrices",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared": "load_matrices_transposed",
    "movmatrix.sync.aligned.m8n8.trans.b16": "transpose",
    "stmatrix.sync.aligned.m8n8.x4.shared": "store_matrices",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32": "multiply_add_eight<__nv_bfloat16>",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32": "multiply_add_eight<__half>",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8": "multiply_add_bytes",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "multiply_add_halves<__nv_bfloat16>",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "multiply_add_halves<__half>",
}
"""The function of emulated.h that stands for an instruction. What isn't here has no effect on a CPU."""
WITHOUT_EFFECT = ("fence", "griddepcontrol")
_SHARED = re.compile(
    r"(extern\s+)?__shared__\s+(?:alignas\([^)]*\)\s*)?([^;]+?)\s*\b(\w+)((?:\[[^\];]*\])*)((?:\s*,\s*\w+(?:\[[^\];]*\])*)*)\s*;"
)
_WRONG = {
    1: "threads wait for each other, and none can go on",
    2: "a thread accessed what is outside of all tensors",
    3: "it has an instruction that emulated.h lacks",
}


def compiler() -> str:
    """The C++ compiler; a test that needs it is skipped where there is none."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler is installed")
    return found


def emulated_source(text: str) -> str:
    """A source with functions of emulated.h in place of assembly, and of declarations of shared memory."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return _SHARED.sub(_shared, _without_assembly(text))


def _shared(found: re.Match[str]) -> str:
    is_dynamic, kind, name, sizes, others = found.groups()
    if is_dynamic and found.string[: found.start()].endswith("\n"):  # outside of functions, where no block is yet
        return f"\n#define {name} reinterpret_cast<{kind}*>(emulated::dynamic())\n"
    if is_dynamic:
        return f"auto* {name} = reinterpret_cast<{kind}*>(emulated::dynamic());"
    every = [(name, sizes), *re.findall(r"(\w+)((?:\[[^\]]*\])*)(?=\s*(?:,|$))", others)]
    return " ".join(f"static char key_of_{n}; auto& {n} = emulated::shared<{kind}{s}>(&key_of_{n});" for n, s in every)


def _without_assembly(text: str) -> str:
    done, begin = "", 0
    for found in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        end = _closing(text, found.end())
        done += text[begin : found.start()] + _call(text[found.end() : end])
        begin = end + 1
    return done + text[begin:]


def _closing(text: str, place: int) -> int:
    """The place of the parenthesis that closes the one before `place`."""
    depth, quoted = 1, False
    while depth:
        if text[place] == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(text[place], 0)
        place += 1
    return place - 1


def _call(assembly: str) -> str:
    instruction = "".join(re.findall(r'"([^"]*)"', re.split(r":(?=[^\"]*(?:\"[^\"]*\"[^\"]*)*$)", assembly)[0])).strip()
    starts = [found.end() for found in re.finditer(r'"[=+&]*[a-z]+"\s*\(', assembly)]
    operands = [assembly[start : _closing(assembly, start)] for start in starts]
    name = next((name for start, name in INSTRUCTIONS.items() if instruction.startswith(start)), None)
    if name is None:
        known = not instruction or instruction.startswith(WITHOUT_EFFECT)
        return "((void)0)" if known else f'emulated::unknown("{instruction.split()[0]}")'
    return f"emulated::{name}({', '.join(operands)})"


@cache
def library(file: Path, entry: str, macros: tuple[tuple[str, str | int], ...], arch: int, folder: Path) -> Any:
    """The function that launches a kernel, from a shared library that is compiled into `folder`, or lies there."""
    header, sources = _prepared(folder)
    name = hashlib.sha256(repr((str(header), str(sources), entry, macros, arch)).encode()).hexdigest()[:20]
    built = folder / f"{name}.so"
    if not built.is_file():
        defined = "".join(f"#define {macro} {value}\n" for macro, value in (*macros, ("EMULATED_ARCH", arch)))
        (own,) = sources.glob(f"*/{file.name}")
        _compile(f'#include "{header}"\n{defined}#include "{own}"\n{_MAIN.format(entry)}', built, "-shared")
    run = ctypes.CDLL(str(built)).emulated_run
    run.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7]
    return run


_MAIN = """extern "C" int emulated_run(void** arguments, unsigned x, unsigned y, unsigned z, unsigned threads,
                            unsigned shared, unsigned cluster, unsigned order) {{
  return emulated::launch({}, arguments, {{x, y, z}}, threads, shared, cluster, order);
}}
"""


@cache
def _prepared(folder: Path) -> tuple[Path, Path]:
    """The compiled header, and the folder with all sources as a C++ compiler takes them; named after their contents."""
    kernels = data("kernels")
    files = {path.relative_to(kernels): emulated_source(path.read_text()) for path in kernels.glob("*/*.cu*")}
    text = HEADER.read_text()
    header = folder / f"{_short(text)}.h"
    if not header.with_suffix(".h.gch").is_file():
        _write(header, text)
        _compile(header, header.with_suffix(".h.gch"))
    sources = folder / _short(repr(sorted(files.items())))
    for path, source in files.items():
        to = sources / path
        if not to.is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            _write(to, source)
    return header, sources


def _write(to: Path, text: str) -> None:
    """Write a file, which is there as a whole or not at all: another process may be about to compile it."""
    part = to.with_name(f"{to.name}.{os.getpid()}")
    part.write_text(text)
    part.rename(to)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _compile(source: str | Path, to: Path, *options: str) -> None:
    """Compile a text or a header to a file, which is there as a whole or not at all: processes may share the folder."""
    options = (*options, "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC")
    includes = [f"-I{path}" for path in (HEADER.parent, *_cuda_includes())]
    part = to.with_name(f"{to.name}.{os.getpid()}")
    text = source if isinstance(source, str) else ""
    what = ["-x", "c++", "-"] if text else ["-x", "c++-header", str(source)]
    command = [compiler(), *options, *includes, *what, "-o", str(part)]
    made = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert not made.returncode, made.stderr[:4000]
    part.rename(to)


def _cuda_includes() -> Iterator[Path]:
    import nvidia  # type: ignore[import-untyped]

    for root in nvidia.__path__:
        yield from Path(root).glob("*/include")


@dataclass
class Gpu:
    """What stands in for a GPU: it loads kernels that run on the CPU.

    order: of threads: 0 as they are numbered, 1 backwards, and blocks, too, 2 by chance. launched: the entries of all
    launches.
    """

    folder: Path
    multiprocessors: int = 3
    arch: int = 900
    order: int = 0
    launched: list[str] = field(default_factory=list)

    def load(self, file: Path, entry: str, macros: Mapping[str, str | int]) -> EmulatedKernel:
        return EmulatedKernel(self, file, entry, tuple(macros.items()))

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        """Be the GPU that kernels and plans see."""
        patch.setattr(cuda, "load", self.load)
        patch.setattr(cuda, "resident_threads", lambda: self.multiprocessors * 2048)
        patch.setattr(cuda, "multiprocessors", lambda: self.multiprocessors)
        patch.setattr(cuda, "has_clusters", lambda: self.arch >= 900)
        patch.setattr(cuda, "shared_memory", lambda: 227 * 1024)
        patch.setattr(_wide_clusters, "_allowed", lambda _: True)


@dataclass
class EmulatedKernel:
    """A kernel as harness.cuda gives it, whose launches end before they return."""

    gpu: Gpu
    file: Path
    entry: str
    macros: tuple[tuple[str, str | int], ...]
    facts = KernelFacts("emulated", 0, 0, 0)

    def __call__(
        self, grid: int | Sequence[int], block: int, *arguments: Any, shared: int = 0, cluster: int | None = None
    ) -> None:
        sizes = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        if 0 in sizes:
            return
        assert block % 32 == 0, "emulate whole warps"
        assert block <= 1024
        assert sizes[0] % (cluster or 1) == 0
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        run = library(self.file, self.entry, self.macros, self.gpu.arch, self.gpu.folder)
        self.gpu.launched.append(self.entry)
        wrong = run(pointers, *sizes, block, shared, cluster or 1, self.gpu.order)
        assert not wrong, f"{self.entry}: {_WRONG[wrong]}"

    def resident_clusters(self, *_: object) -> int:
        return 1000


def _value(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(0)
    return ctypes.c_void_p(argument.data_ptr()) if hasattr(argument, "data_ptr") else argument


def guarded(tensor: Any, offset: int = 0) -> Any:
    """A copy of a tensor that begins `offset` elements past 16 bytes, as near to pages that can't be read as it may.

    The page behind the copy begins less than 16 bytes, and `offset` elements, behind its end.
    """
    import torch

    size = tensor.element_size()
    page = mmap.PAGESIZE
    room = math.ceil((offset + tensor.numel()) * size / 16) * 16
    pages = max(1, math.ceil(room / page))
    memory = mmap.mmap(-1, (pages + 2) * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for forbidden in (begin, begin + (pages + 1) * page):
        assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(forbidden), page, 0)
    first = (pages + 1) * page - room + offset * size
    if not tensor.numel():
        return tensor.clone()
    raw = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.numel() * size, offset=first)
    return raw.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def complaint(
    gpu: Gpu,
    op: Op,
    case: Case,
    offsets: Mapping[str, int] | None = None,
    plan: Plan | None = None,
    change: Callable[[Tensors], object] = lambda _: None,
) -> str | None:
    """What is wrong with a call of a case's variant on the stand-in for a GPU; None if nothing is.

    offsets: elements by which tensors begin past 16 bytes, by name. plan: that is tried, in place of the rule's.
    change: is called with the inputs before the call.
    """
    import torch

    variant, apart = op.variants[case.variant], offsets or {}
    ctx = Context(case, getattr(torch, case.dtype), torch.device("cpu"), torch.Generator().manual_seed(1), op)
    ctx.tried = plan
    with pytest.MonkeyPatch.context() as patch:
        gpu.stand_in(patch)
        inputs = check.make_inputs(ctx)
        change(inputs)
        encoded = variant.encode(ctx, inputs) if variant.encode else {}
        given = vars(check.merged(inputs, check.make_outputs(ctx, variant))) | encoded
        tensors = Tensors(**{name: guarded(tensor, apart.get(name, 0)) for name, tensor in given.items()})
        variant.prepare(ctx)(tensors)
    return check.complaint(ctx, variant, inputs, tensors)
