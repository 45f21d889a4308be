"""Processes that measure one case together. A single process is a group of one and needs nothing."""

from __future__ import annotations

import os
from typing import Any


class Group:
    """The ranks of one case. Every rank must make the same calls in the same order."""

    def __init__(self, rank: int = 0, size: int = 1, torch_distributed: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.distributed = torch_distributed

    def agree(self, value: float) -> float:
        """Rank 0's value, on every rank: for decisions that must not differ, such as when to stop."""
        return float(self._exchange([value])[0][0])

    def slowest(self, values: list[float]) -> list[float]:
        """The element-wise maximum over ranks: a collective takes as long as its slowest rank."""
        return [max(column) for column in zip(*self._exchange(values), strict=True)]

    def barrier(self) -> None:
        if self.size > 1:
            self.distributed.barrier()

    def _exchange(self, values: list[float]) -> list[list[float]]:
        if self.size == 1:
            return [values]
        gathered: list[Any] = [None] * self.size
        self.distributed.all_gather_object(gathered, values)
        return gathered


def from_environment() -> Group:
    """The group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, joined through gloo."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Group()
    from torch import distributed

    # gloo carries the decisions between hosts; an op that needs NCCL makes a group of its own.
    distributed.init_process_group("gloo")
    return Group(distributed.get_rank(), size, distributed)
