"""Torch's group of all ranks of a case, for ops whose ranks communicate."""

from __future__ import annotations

from functools import cache
from typing import Any

from harness.model import Case

NEEDS_RANKS = "one device has nobody to communicate with: give world: 2 or more"


def unsupported_alone(case: Case) -> str | None:
    """Why the case can't run, if it has one rank only."""
    return NEEDS_RANKS if case.world == 1 else None


@cache
def process_group(backend: str) -> Any:
    """The group of all ranks: 'nccl' for GPUs, 'gloo' for processors. Every rank must make this call.

    A process keeps the group to its end, since making one takes the time of many cases. NCCL's has its communicators
    captured in CUDA graphs, and would wait at its end until these are gone. After a failure, the processes of a team
    are killed, and with them whatever their groups still wait for.
    """
    from torch import distributed

    return distributed.new_group(backend=backend)


def backend_of(device_type: str) -> str:
    """The backend for tensors on this type of device."""
    return "nccl" if device_type == "cuda" else "gloo"
