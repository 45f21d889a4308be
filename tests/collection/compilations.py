"""What compilations of kernels gave, kept so that only what changed is compiled again.

compiled.csv is committed: a row for each kernel that test_kernels.py compiles, so a change of a kernel shows in its
registers, and a fresh checkout compiles nothing. scripts/make_compiled.py writes it. What it lacks is compiled, and
kept in pytest's cache folder. A row counts only for the same source, headers, macros, options and compiler.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache
from pathlib import Path

from harness import source
from harness.comments import without_comments
from harness.cuda import compile as compiler
from tests.collection import texts

COMMITTED = Path(__file__).with_name("compiled.csv")
A_MONTH = 30 * 24 * 3600
FEWER_THREADS = ("sm_89", "sm_120")
"""GPUs whose multiprocessors hold 1536 threads, and so fewer blocks than kernels ask registers for."""
Macros = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of an entry. Bytes are of a thread, and the largest of the functions that the entry calls.

    code: a hash of the instructions alone, since line numbers and the names of folders are elsewhere.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    code: str

    @property
    def local_bytes(self) -> int:
        return max(self.stack_bytes, self.spill_store_bytes, self.spill_load_bytes)


RESOURCES = tuple(field.name for field in fields(Kernel) if field.name != "code")
Compiled = dict[str, Kernel]
"""The kernels of a compilation, by the name of the entry."""


@dataclass(frozen=True)
class Compilation:
    """What is compiled: a source with macros, for an architecture."""

    file: Path
    macros: Macros
    arch: str

    @property
    def key(self) -> str:
        """A hash of the compiler, and one of all else that the machine code depends on.

        Comments, and the folder of the source, aren't part of it.
        """
        key = hashlib.sha256(repr((sorted(self.macros), self.arch)).encode())
        for file in (*closure(self.file), Path(compiler.__file__)):
            key.update(contents(file))
        return f"{compiler_version()}-{key.hexdigest()[:16]}"

    def result(self, folder: Path, *, may_warn: bool = False) -> Compiled:
        """What the compiler made of it: what is committed, or kept in `folder`, or made now."""
        key = self.key
        if key in committed():
            return committed()[key]
        kernels = texts.text(folder, f"{self.file.stem}-{key}.json", lambda: self._facts(may_warn))
        return {name: Kernel(**facts) for name, facts in json.loads(kernels).items()}

    def ptx(self, entry: str, folder: Path) -> str:
        """A kernel in PTX, which is committed, or kept in `folder`, or made now."""
        key = hashlib.sha256(self.key.encode() + contents(Path(texts.__file__)) + entry.encode()).hexdigest()[:16]

        def made() -> str:
            parts = texts.ptx(self.file, self.macros).split(".entry ")
            (kernel,) = [part for part in parts if part.startswith(f"{entry}(")]
            return kernel

        return texts.text(folder, f"{entry}-{key}.ptx", made)

    def _facts(self, may_warn: bool) -> str:
        return json.dumps({name: asdict(kernel) for name, kernel in self._compile(may_warn).items()})

    def _compile(self, may_warn: bool) -> Compiled:
        cubin, log = compiler.compile_verbose(self.file, dict(self.macros), self.arch)
        warnings = [line for line in log.splitlines() if "warning" in line]
        if self.arch in FEWER_THREADS:
            warnings = [line for line in warnings if ".minnctapersm will be ignored" not in line]
        assert may_warn or not warnings, log
        code = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in sections(cubin)}
        return {name: Kernel(**used, code=code[f".text.{name}"]) for name, used in resources(log).items()}


@cache
def closure(file: Path) -> tuple[Path, ...]:
    """A source, and what it includes."""
    return tuple(source._closure(file, source._included))


@cache
def contents(file: Path) -> bytes:
    return hashlib.sha256(without_comments(file.name, file.read_bytes())).digest()


@cache
def compiler_version() -> str:
    """A hash of the versions of NVRTC, of CUDA's headers and of CCCL."""
    from cuda.bindings import nvrtc

    version = hashlib.sha256(repr(nvrtc.nvrtcVersion()).encode())
    for header in compiler._versions():
        version.update(header.read_bytes())
    return version.hexdigest()[:6]


def resources(log: str) -> dict[str, dict[str, int]]:
    """What each entry uses, from the log of ptxas."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        (registers,) = re.findall(r"Used (\d+) registers", part)
        frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        assert frames, log
        largest = (max(map(int, bytes_)) for bytes_ in zip(*frames, strict=True))
        found[part.partition("'")[0]] = dict(zip(RESOURCES, (int(registers), *largest), strict=True))
    return found


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a 64-bit ELF file, from its table of section headers, of which one has all names."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, of_names = struct.unpack_from("<3H", elf, 58)
    headers = [struct.unpack_from("<2I4Q", elf, table + index * size) for index in range(count)]
    names = headers[of_names][4]
    for name, _, _, _, offset, length in headers:
        first = names + name
        yield elf[first : elf.index(b"\0", first)].decode(), elf[offset : offset + length]


@cache
def committed() -> dict[str, Compiled]:
    """The committed results by their key."""
    found: dict[str, Compiled] = {}
    if COMMITTED.exists():
        with COMMITTED.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                used = {name: int(row[name]) for name in RESOURCES}
                found.setdefault(row["key"], {})[row["entry"]] = Kernel(**used, code=row["code"])
    return found


def write(compilations: Iterable[Compilation], folder: Path) -> None:
    """Write the committed file anew, with the results of these."""
    # Before the file is emptied: what it has needn't be compiled.
    results = [(one, one.result(folder)) for one in compilations]
    with COMMITTED.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["entry", "arch", "macros", *RESOURCES, "code", "key"])
        for one, result in results:
            macros = " ".join(f"{name}={value}" for name, value in sorted(one.macros))
            for entry, kernel in sorted(result.items()):
                rows.writerow([entry, one.arch, macros, *astuple(kernel), one.key])


def kept(folder: Path) -> Path:
    """The folder, without files that are older than a month."""
    for file in folder.iterdir():
        if file.stat().st_mtime < time.time() - A_MONTH:
            file.unlink(missing_ok=True)
    return folder
