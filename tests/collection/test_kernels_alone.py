"""Every kernel source compiles alone, without the macros that the harness gives, and begins with its story."""

from __future__ import annotations

import re
from pathlib import Path

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
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    nvrtc.nvrtcGetProgramLog(program, log := b" " * size)
    _, size = nvrtc.nvrtcGetPTXSize(program)
    nvrtc.nvrtcGetPTX(program, ptx := b" " * size)
    nvrtc.nvrtcDestroyProgram(program)
    return re.findall(r"\.entry (\w+)", ptx.decode()), log.decode() if failed else ""


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_compiles_alone(source: Path) -> None:
    kernels, complaint = alone(source)
    assert complaint == ""
    assert kernels, "no macro has a default with which there is a kernel"


def test_a_macro_without_a_default_is_found(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text('extern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n')
    assert 'identifier "SCALAR" is undefined' in alone(source)[1]
    source.write_text('#ifdef SCALAR\nextern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n#endif\n')
    assert alone(source) == ([], "")
    source.write_text('#define SCALAR float\nextern "C" __global__ void mine(SCALAR* x) { x[threadIdx.x] = 0; }\n')
    assert alone(source) == (["mine"], "")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_source_begins_with_what_the_op_does(source: Path) -> None:
    lines = source.read_text().splitlines()
    story = lines[: next(number for number, line in enumerate(lines) if not line.startswith("//"))]
    assert len(story) >= 3, "say what the op does, what bounds it, and which macros there are"
