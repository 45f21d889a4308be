"""Every kernel source compiles alone, without the macros that the harness gives, and begins with its story."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import nvrtc

from harness.cuda import compile as compiler
from harness.paths import data

SOURCES = sorted(data("kernels").glob("*/*.cu"))


def alone(source: Path) -> tuple[list[str], str]:
    """The kernels that a source has without any macro, and what the compiler says against it.

    As with `nvcc -c` in its folder, only the headers of CUDA are given: the source finds its own. PTX is enough:
    machine code would take ten times as long.
    """
    _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), str(source).encode(), 0, [], [])
    folders = [f"--include-path={folder}".encode() for folder in (source.parent, *compiler._cuda_headers())]
    options = [b"--std=c++17", b"--gpu-architecture=compute_90", *folders]
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if failed:
        return [], written(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    return re.findall(r"\.entry (\w+)", written(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)), ""


def written(program: Any, size_of: Callable[[Any], Any], write: Callable[[Any, bytes], Any]) -> str:
    """A text that NVRTC writes into memory of ours."""
    _, size = size_of(program)
    text = bytes(size + 1)  # Python shares objects of one byte
    write(program, text)
    return text.rstrip(b"\0").decode()


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_alone(source: Path) -> None:
    kernels, complaint = alone(source)
    assert complaint == ""
    assert kernels, "no macro has a default with which there is a kernel"


def test_a_macro_without_a_default_is_found(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    text = 'extern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n'
    source.write_text(f"#define SCALAR float\n{text}")
    assert alone(source) == (["mine"], "")
    source.write_text(f"#ifdef SCALAR\n{text}#endif\n")
    assert alone(source) == ([], "")
    source.write_text(text)
    assert 'identifier "SCALAR" is undefined' in alone(source)[1]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_begins_with_what_the_op_does(source: Path) -> None:
    lines = source.read_text().splitlines()
    story = lines[: next(number for number, line in enumerate(lines) if not line.startswith("//"))]
    assert len(story) >= 3, "say what the op does, what bounds it, and which macros there are"
