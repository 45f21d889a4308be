"""Every kernel source compiles alone, without the macros that the harness gives, and begins with its story."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda.bindings import nvrtc

from harness.cuda import compile as compiler
from harness.paths import data

SOURCES = sorted(data("kernels").glob("*/*.cu"))


def complaint(source: Path) -> str:
    """What the compiler's first part says of a source; it makes no code, which would take ten times as long."""
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, [], [])
    folders = [f"--include-path={folder}".encode() for folder in compiler._include_folders(source.parent)]
    options = [b"--std=c++17", b"--gpu-architecture=compute_90", b"--fdevice-syntax-only", *folders]
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if not failed:
        return ""
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size + 1)  # NVRTC writes into it, and Python shares objects of one byte
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.rstrip(b"\0").decode()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_alone(source: Path) -> None:
    assert complaint(source) == ""


def test_a_macro_without_a_default_is_found(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text('extern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n')
    assert 'identifier "SCALAR" is undefined' in complaint(source)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_begins_with_what_the_op_does(source: Path) -> None:
    lines = source.read_text().splitlines()
    story = lines[: next(number for number, line in enumerate(lines) if not line.startswith("//"))]
    assert len(story) >= 3, "say what the op does, what bounds it, and which macros there are"
