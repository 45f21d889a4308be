"""Facts about the host that every kind of device reports."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "triton", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy", "nvtx", "nvidia-ml-py")


def fingerprint(*parts: object) -> str:
    """A short hash that tells machines apart without naming them."""
    import hashlib

    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:12]


def cpu_name() -> str:
    """The processor's marketing name, or its architecture where the system doesn't tell."""
    import platform

    return _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def cpu_count() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """All of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """Memory that can be taken without swapping; all of it where the system doesn't tell."""
    text = _proc_value("/proc/meminfo", "MemAvailable")
    return int(text.split()[0]) * 1024 if text else memory_bytes()


def system() -> str:
    """Operating system and Python, e.g. 'Linux 6.1 x86_64, Python 3.11.7'."""
    import platform

    release = platform.release().split("-")[0]
    return f"{platform.system()} {release} {platform.machine()}, Python {platform.python_version()}"


def versions() -> tuple[tuple[str, str], ...]:
    """Installed versions of the packages that influence a number."""
    found = []
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return tuple(found)


def _proc_value(file: str, key: str) -> str:
    path = Path(file)
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
