"""Kinds of device, one module each: `cpu.py` and `cuda.py` here, and the entry points `harness.devices` of packages.

A module defines `KIND`, a class that offers what `Device` names. Its objects are made without torch; only methods that
use a device import torch. README.md beside this file says how a device is written.
"""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint
from typing import cast

from harness.devices._protocol import (
    CACHES,
    FEWEST_SETS,
    MARK,
    Batch,
    Clock,
    Device,
    Fact,
    MatrixProduct,
    Ring,
    Stream,
    covering_sets,
    is_out_of_memory,
)
from harness.devices._timing import HostClock, estimate, host_batch, launch_batch, replay_batch, steady_batch
from harness.discover import discover, entry_points, load
from harness.errors import UsageError, brief, described, nearest, without_exit

__all__ = [
    "CACHES",
    "FEWEST_SETS",
    "MARK",
    "OTHER_NAMES",
    "Batch",
    "Clock",
    "Device",
    "Fact",
    "HostClock",
    "MatrixProduct",
    "Ring",
    "Stream",
    "choose",
    "covering_sets",
    "estimate",
    "host_batch",
    "is_out_of_memory",
    "kinds",
    "launch_batch",
    "replay_batch",
    "steady_batch",
    "too_few",
]

OTHER_NAMES = {"gpu": "cuda"}
"""Names that users may give in place of a kind's own."""

_GUIDE = "harness/devices/README.md says what a device offers"
_MEMBERS = tuple(dict.fromkeys([*Device.__annotations__, *(name for name in vars(Device) if name[0] != "_")]))


def too_few(device: Device, needed: int) -> str | None:
    """Why so many ranks of this machine can't have a device each; None if they can, or if all ranks share one."""
    count = device.count
    return None if count is None or needed <= count else f"needs {needed} devices, this machine has {count}"


def kinds() -> dict[str, Device]:
    """Every kind of device by name, the preferred one first: CUDA, the devices of packages, the host's processor.

    Raises UsageError for an entry point that can't be loaded, or that lacks something that a device offers.
    """
    found: dict[str, Device] = {}
    for module in discover(__name__, ["KIND"]).values():
        device: Device = module.KIND()
        found[device.kind] = device
    for entry in entry_points(__name__):
        where = f"entry point '{entry.name}' ({entry.value})"
        if entry.name in found:
            raise UsageError(f"{where}: there is a device named '{entry.name}' already", "rename the entry point")
        found[entry.name] = _made(entry, where)
    preferred = sorted(found, key=lambda name: (found[name].on_host, name != "cuda"))
    return {name: found[name] for name in preferred}


def _made(entry: EntryPoint, where: str) -> Device:
    """The device that an entry point names. Raises UsageError, which names the entry point, for whatever is wrong."""
    try:
        with without_exit(where):
            made = load(entry).KIND()
    except Exception as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{where}: {brief(described(error))}", _GUIDE) from error
    # A property isn't computed for this: it may ask a driver.
    if lacking := [name for name in _MEMBERS if inspect.getattr_static(made, name, _MEMBERS) is _MEMBERS]:
        raise UsageError(f"{where}: KIND has no {' and no '.join(lacking)}", _GUIDE)
    if made.kind != entry.name:
        raise UsageError(f"{where}: KIND.kind is '{made.kind}'", "give both the same name")
    return cast(Device, made)


def choose(requested: str | None, *, to_plan: bool = False) -> str:
    """The kind to use: the requested one, else the first that works here. 'gpu' means cuda.

    to_plan: the requested kind needn't work here, since nothing will run. Raises UsageError for a kind that is unknown
    or can't be used here.
    """
    available = kinds()
    if requested is None:
        return next(name for name, device in available.items() if device.missing() is None)
    requested = OTHER_NAMES.get(requested, requested)
    if requested not in available:
        raise UsageError(f"no device named '{requested}'", nearest(requested, available))
    if not to_plan and (reason := available[requested].missing()):
        raise UsageError(f"device '{requested}' can't be used: {reason}", "'harness env' says what is missing")
    return requested
