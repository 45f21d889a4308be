"""Texts that a compiler made for single tests, kept so that only what changed is compiled again.

compiled.zip is committed: PTX, what kernels use, and whether a source compiles alone. scripts/make_compiled.py writes
it. What it lacks is made, and kept in pytest's cache folder. A text's name has a hash of all that the text depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from harness import source
from harness.cuda import compile as compiler

COMMITTED = Path(__file__).with_name("compiled.zip")


def text(folder: Path, name: str, make: Callable[[], str]) -> str:
    """The text of that name: what is committed, or kept in `folder`, or made now."""
    if name in committed():
        return committed()[name]
    kept = folder / name
    if not kept.exists():
        # Processes may share the folder: none sees half a file.
        begun = kept.with_suffix(f".{os.getpid()}")
        begun.write_text(make(), encoding="utf-8")
        begun.replace(kept)
    return kept.read_text(encoding="utf-8")


@cache
def committed() -> dict[str, str]:
    """The committed texts by their name."""
    if not COMMITTED.exists():
        return {}
    with zipfile.ZipFile(COMMITTED) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def write(folder: Path) -> None:
    """Write the committed file anew, with the texts in `folder`: the same bytes for the same texts."""
    with zipfile.ZipFile(COMMITTED, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for kept in sorted(folder.iterdir()):
            file.writestr(zipfile.ZipInfo(kept.name), kept.read_bytes(), zipfile.ZIP_DEFLATED)


@cache
def ptx(file: Path, macros: tuple[tuple[str, str | int], ...]) -> str:
    """A source in PTX for sm_90. (cuda.core would ask the driver whether it can load the PTX.)"""
    folders = [f"-I{folder}" for folder in compiler._include_folders(file.parent)]
    made, complaint = compiled(file, ["--gpu-architecture=sm_90", *folders, *(f"-D{n}={value}" for n, value in macros)])
    assert made, complaint
    return made


def alone(file: Path) -> tuple[list[str], str]:
    """The kernels that a source has without any macro, and what the compiler says against it.

    As with `nvcc -c` in its folder, only the headers of CUDA are given: the source finds its own. PTX is enough:
    machine code would take ten times as long.
    """
    folders = [f"--include-path={folder}" for folder in (file.parent, *compiler._cuda_headers())]
    made, complaint = compiled(file, ["--std=c++17", "--gpu-architecture=compute_90", *folders])
    return re.findall(r"\.entry (\w+)", made), "" if made else complaint


def alone_name(file: Path) -> str:
    """The name of the text with the result of `alone`. Where headers lie is part of its hash, as what they say is."""
    from tests.collection.compilations import compiler_version, contents

    key = hashlib.sha256()
    for each in sorted(source._closure(file, source._included)):
        key.update(os.path.relpath(each, file.parent).encode() + contents(each))
    for module in (Path(__file__), Path(compiler.__file__)):
        key.update(contents(module))
    return f"{file.stem}-{compiler_version()}-{key.hexdigest()[:16]}.alone"


def kept_alone(file: Path, folder: Path) -> tuple[list[str], str]:
    """The result of `alone`, from its text."""
    kernels, complaint = json.loads(text(folder, alone_name(file), lambda: json.dumps(alone(file))))
    return kernels, complaint


def compiled(file: Path, options: list[str]) -> tuple[str, str]:
    """A source in PTX, which is empty if it doesn't compile, and NVRTC's log."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(file.read_bytes(), str(file).encode(), 0, [], [])
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = _written(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    made = "" if failed else _written(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    nvrtc.nvrtcDestroyProgram(program)
    return made, log


def _written(program: object, size_of: Callable[[object], tuple[object, int]], write: Callable[..., object]) -> str:
    """A text that NVRTC writes into memory of ours."""
    _, size = size_of(program)
    made = bytes(size + 1)  # Python shares objects of one byte
    write(program, made)
    return made.rstrip(b"\0").decode()
