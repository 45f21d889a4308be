"""Facts of a GPU that isn't here, so that plans for it can be made and compiled on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.errors import UsageError

_KB = 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """What plans need to know. shared: bytes of shared memory that a block may have. model: a GPU that is so."""

    arch: str
    multiprocessors: int
    shared: int
    clusters: bool
    model: str
    resident_threads: int = 2048


# From the tables of compute capabilities in NVIDIA's CUDA C++ Programming Guide, and the data sheets of the models.
KNOWN = {
    gpu.arch: gpu
    for gpu in (
        Gpu("sm_80", 108, 163 * _KB, clusters=False, model="A100"),
        Gpu("sm_86", 84, 99 * _KB, clusters=False, model="A40", resident_threads=1536),
        Gpu("sm_89", 142, 99 * _KB, clusters=False, model="L40S", resident_threads=1536),
        Gpu("sm_90", 132, 227 * _KB, clusters=True, model="H100 and H200"),
        Gpu("sm_100", 148, 227 * _KB, clusters=True, model="B200"),
        Gpu("sm_120", 170, 99 * _KB, clusters=True, model="RTX 5090", resident_threads=1536),
    )
}
"""Architectures by name. The oldest that the bundled kernels are made for is sm_80."""

_assumed: list[Gpu] = []


def known(arch: str) -> Gpu:
    """The facts of an architecture. Raises UsageError if they aren't known."""
    if arch not in KNOWN:
        raise UsageError(f"nothing is known of the architecture '{arch}'", f"known: {', '.join(KNOWN)}")
    return KNOWN[arch]


def current() -> Gpu | None:
    """The GPU that is assumed now; None for the real one."""
    return _assumed[-1] if _assumed else None


@contextmanager
def assuming(gpu: Gpu) -> Iterator[None]:
    """What `harness.cuda` says of the current GPU is this one's meanwhile."""
    _assumed.append(gpu)
    try:
        yield
    finally:
        _assumed.pop()
