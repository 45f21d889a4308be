"""What an NVIDIA GPU needs beside torch: the driver, and what compiles kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.devices import Fact
from harness.errors import MachineError

_SLOWER = "without it kernels run alike, and each launch takes the host longer"


def driver() -> Fact:
    """The NVIDIA driver and the newest CUDA that it runs, or what to do to get one."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        advice = "install the NVIDIA driver to measure on a GPU; the CPU needs none"
        return Fact("driver", f"none ({error})", advice)
    try:
        newest = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        version = pynvml.nvmlSystemGetDriverVersion()
        return Fact("driver", f"{version}, CUDA {newest // 1000}.{newest % 1000 // 10}")
    finally:
        pynvml.nvmlShutdown()


def compiler() -> Iterator[Fact]:
    """NVRTC and the headers that kernels include."""
    from cuda import pathfinder

    try:
        library = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
        yield Fact("NVRTC", str(library))
    except pathfinder.DynamicLibNotFoundError:
        yield Fact("NVRTC", "missing", "pip install nvidia-cuda-nvrtc; without it no kernel of ours can be compiled")
    folder = pathfinder.find_nvidia_header_directory("cudart")
    if folder and (Path(folder) / "cuda_fp16.h").is_file():
        yield Fact("CUDA headers", folder)
    else:
        yield Fact("CUDA headers", "missing", "pip install nvidia-cuda-runtime; half-precision kernels include them")


def launcher() -> Fact:
    """The launcher in C, or why Python launches kernels in its place."""
    from harness.cuda import native

    try:
        return Fact("launcher in C", native.built().__file__ or "built")
    except MachineError as error:
        return Fact(
            "launcher in C", f"none ({error.message.splitlines()[0]})", f"{error.advice or 'see above'}; {_SLOWER}"
        )
