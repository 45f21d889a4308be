"""CUDA C++ -> cubin through NVRTC, cached on disk by content, options and compiler version.

The hash of an entry protects against damage, not against strangers: who can write an entry can write its hash. Against
strangers, `harness.kept` reads only what nobody but this user can have written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from harness import kept, paths
from harness.errors import CompileError, MachineError

_HEADERS = frozenset({".cuh", ".h", ".hpp"})


def architecture() -> str:
    """'sm_90' for the current device."""
    from cuda.core import Device

    return f"sm_{Device().arch}"


def cubin(file: Path, macros: Mapping[str, str | int], arch: str) -> bytes:
    """Machine code of `file` for `arch`. Compiles only what isn't in the cache; processes may share the cache.

    An entry of the cache that isn't whole, as a full disk or a crash leaves it, counts as none: it is made anew. Where
    the cache can't be used, every process compiles. Raises CompileError with the compiler's log, MachineError where
    NVRTC or the CUDA headers are missing.
    """
    from cuda.core.utils import make_program_cache_key

    source = file.read_text()
    key = make_program_cache_key(
        code=source,
        code_type="c++",
        options=_options(file, macros, arch),
        target_type="cubin",
        extra_digest=_headers_digest(file.parent),
    )
    name = f"kernels/{hashlib.sha256(key).hexdigest()}"
    entry = kept.read(name)
    code = None if entry is None else _opened(entry)
    if code is None:
        code, _ = compile_verbose(file, macros, arch)
        kept.write(name, _sealed(code))
    return code


def _sealed(code: bytes) -> bytes:
    """An entry of the cache: the code behind its hash."""
    return hashlib.sha256(code).digest() + code


def _opened(entry: bytes) -> bytes | None:
    """The code in an entry of the cache; None if it isn't what was stored, or if an older harness stored it."""
    size = hashlib.sha256().digest_size
    code = entry[size:]
    return code if code and _sealed(code) == entry else None


def compile_verbose(file: Path, macros: Mapping[str, str | int], arch: str) -> tuple[bytes, str]:
    """Machine code and the compiler's log with the registers, stack frame and spills of each kernel. Not cached."""
    import io

    from cuda.core import Program

    options = _options(file, macros, arch)
    log = io.StringIO()
    try:
        program = Program(file.read_text(), "c++", options)
        return bytes(program.compile("cubin", logs=log).code), log.getvalue()
    except Exception as error:
        raise CompileError(
            f"{file.name} doesn't compile for {arch}:\n{error}", "see the compiler's log above"
        ) from error


def _options(file: Path, macros: Mapping[str, str | int], arch: str):  # type: ignore[no-untyped-def]
    from cuda.core import ProgramOptions

    return ProgramOptions(
        # The full path lets the profilers find the source lines.
        name=str(file),
        arch=arch,
        std="c++17",
        lineinfo=True,
        ptxas_options="-v",
        include_path=[str(folder) for folder in _include_folders(file.parent)],
        define_macro=[(name, str(value)) for name, value in macros.items()] or None,
    )


def _include_folders(own: Path) -> list[Path]:
    return [own, own / "include", paths.data("kernels") / "include", *_cuda_headers()]


def need_cccl() -> None:
    """Check that the headers of CUB and libcu++ are there, which some kernels include. Raises MachineError if not."""
    if len(_cuda_headers()) < 2:
        raise MachineError("the headers of CUB (cub/cub.cuh) aren't installed", "pip install nvidia-cuda-cccl")


@cache
def _cuda_headers() -> tuple[Path, ...]:
    """Folders of the CUDA headers (cuda_fp16.h and what it includes), and of CCCL where it's installed."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = [find_nvidia_header_directory(library) for library in ("cudart", "cccl")]
    if found[0] is None:
        raise MachineError("the CUDA headers (cuda_fp16.h) aren't installed", "pip install nvidia-cuda-runtime")
    return tuple(Path(folder) for folder in found if folder)


def _headers_digest(own: Path) -> bytes:
    """Hash of what a kernel might include: the contents of our headers, the versions of CUDA's and CCCL's."""
    digest = hashlib.sha256()
    # Beside the source too, where NVRTC looks first: another revision may lie at the same path later.
    for folder in (own, own / "include", paths.data("kernels") / "include"):
        for header in sorted(path for path in folder.glob("*") if path.suffix in _HEADERS):
            digest.update(header.name.encode() + header.read_bytes())
    for header in _versions():
        digest.update(header.read_bytes())
    return digest.digest()


def _versions() -> list[Path]:
    """The headers that hold the versions of CUDA and of CCCL, which their paths don't tell."""
    names = ("cuda_runtime_api.h", "cuda/std/__cccl/version.h")
    return [header for folder in _cuda_headers() for name in names for header in folder.glob(name)]
