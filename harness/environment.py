"""What this machine has and what is missing, each with what to do about it. Never imports torch."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import devices, kept, paths, units
from harness.devices import Fact
from harness.errors import HarnessError
from harness.model import DeviceFacts

_SELF = "gpu-bench-harness"
_PROFILERS = {
    "ncu": "Nsight Compute: hardware counters of a kernel",
    "nsys": "Nsight Systems: timelines",
}


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything looked at, by section. `usable`: at least one device works."""

    sections: tuple[tuple[str, tuple[Fact, ...]], ...]
    usable: bool


def survey() -> Survey:
    """Look at the devices and what each kind needs, the packages, the profilers and the folders."""
    available = devices.kinds()
    found = {name: device.missing() for name, device in available.items()}
    sections: dict[str, Callable[[], Iterator[Fact]]] = {
        "devices": lambda: _devices(found),
        "packages": _packages,
        **{f"software for {name}": device.software for name, device in available.items()},
        "profilers": _profilers,
        "folders": _folders,
    }
    looked = ((title, tuple(look())) for title, look in sections.items())
    facts = tuple((title, found) for title, found in looked if found)
    return Survey(facts, usable=any(reason is None for reason in found.values()))


def _devices(missing: dict[str, str | None]) -> Iterator[Fact]:
    available = devices.kinds()
    for name, reason in missing.items():
        if reason is not None:
            yield Fact(name, "not usable", reason)
            continue
        try:
            described = [_describe(device) for device in available[name].machine().devices]
        except HarnessError as error:
            yield Fact(name, error.message, error.advice)
            continue
        for index, text in enumerate(described):
            yield Fact(name if len(described) == 1 else f"{name} {index}", text)


def _describe(device: DeviceFacts) -> str:
    """The facts of a device that matter for a measurement, in one line."""
    facts = [
        device.name,
        f"compute capability {device.compute_capability}" if device.compute_capability else "",
        f"{device.multiprocessors} multiprocessors" if device.multiprocessors else "",
        f"{units.size(device.memory_bytes)} memory",
        f"{units.size(device.cache_bytes)} last-level cache",
        f"power limit {device.power_limit_w:.0f} W" if device.power_limit_w else "",
    ]
    return ", ".join(filter(None, facts))


def _packages() -> Iterator[Fact]:
    """The interpreter, the harness, and the version of everything that it declares to need."""
    yield Fact("python", platform.python_version())
    for name in [_SELF, *_required()]:
        try:
            yield Fact(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Fact(name, "missing", f"pip install {name}")


def _required() -> list[str]:
    """Names of the packages that the harness declares to need; none where it runs without being installed."""
    try:
        declared = importlib.metadata.requires(_SELF) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in declared if "extra ==" not in line)


def _profilers() -> Iterator[Fact]:
    for name, purpose in _PROFILERS.items():
        path = shutil.which(name)
        yield Fact(name, path or "not on PATH", "" if path else f"only 'harness profile {name}' needs it; {purpose}")


def _folders() -> Iterator[Fact]:
    for name in ("kernels", "scenarios"):
        folder = paths.data(name)
        yield Fact(name, str(folder), "" if folder.is_dir() else "missing from this installation; install it again")
    cache = paths.cache()
    advice = "" if _writable(cache) else "can't be written; name another folder in HARNESS_CACHE"
    if problem := kept.distrust(cache):
        advice = f"isn't used: {problem}; name a folder of your own in HARNESS_CACHE"
    yield Fact("cache", str(cache), advice)


def _writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, which is made if need be. Permissions alone don't tell."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
