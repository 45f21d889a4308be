"""Ranks: the processes that measure one case together. What they exchange, and how they end a case together.

A single process is a group of one, which exchanges nothing.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

_LONGEST = 1800.0  # seconds to wait for another rank, which may compile at that time; a job's own limit is shorter
_PATIENCE = 3.0  # seconds that a rank with an error waits for the other ranks, which may wait in a collective

Gather = Callable[[Any, float], list[Any]]
_Value = TypeVar("_Value")


class PeerError(Exception):
    """A rank can't go on, so the case ends on every rank.

    status: how the case ends. text: why, with the number of the rank where there are several.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Group:
    """The ranks of one case. Every rank must make the same calls in the same order.

    gather(value, seconds): every rank's value on every rank, in the order of ranks; raises TimeoutError if a rank sends
    none within so many seconds.

    local_rank, local_size: the rank among the ranks on this host, and their number; all are here unless told.

    A rank that fails sends its failure in place of its next value. So the other ranks learn of the failure at
    their next exchange: every method but `failed` raises PeerError once another rank has failed.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        gather: Gather = lambda value, _seconds: [value],
        *,
        local_rank: int | None = None,
        local_size: int | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = rank if local_rank is None else local_rank
        self.local_size = size if local_size is None else local_size
        self._gather = gather

    def exchange(self, value: _Value) -> list[_Value]:
        """Every rank's value, in the order of ranks."""
        found = self._gather((None, value), _LONGEST)
        if failure := _first_failure(found):
            raise failure
        return [value for _, value in found]

    def agree(self, value: float) -> float:
        """Rank 0's value, on every rank: for decisions that must not differ, such as when to stop."""
        return float(self.exchange(value)[0])

    def slowest(self, values: list[float]) -> list[float]:
        """The element-wise maximum over ranks: a collective takes as long as its slowest rank."""
        return [max(column) for column in zip(*self.exchange(values), strict=True)]

    def barrier(self) -> None:
        """Wait until every rank has made this call."""
        self.exchange(None)

    def verdict(self, mine: str | None) -> str | None:
        """The complaint of the first rank that has one, with the rank's number; None if no rank has one."""
        found = self.exchange(self._signed(mine) if mine is not None else None)
        return next((text for text in found if text is not None), None)

    def failed(self, status: str, text: str) -> PeerError:
        """End the case on every rank, since this one can't go on. Gives the failure that all ranks report.

        If several ranks failed in the same step, all report the failure of the first of them. Raises TimeoutError if
        the other ranks make no exchange: they may wait for this rank in a collective of the op.
        """
        own = (status, self._signed(text))
        failure = _first_failure(self._gather((own, None), _PATIENCE))
        return failure or PeerError(*own)

    def _signed(self, text: str) -> str:
        return f"rank {self.rank}: {text}" if self.size > 1 else text


ALONE = Group()
"""The group of a process that measures by itself."""


def from_environment() -> Group:
    """The group that RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe.

    It also joins torch's default group, with the backend gloo. An op that needs NCCL makes a group of its own.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    from torch import distributed

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A connection of its own: while this process waits for a value, another thread of torch, such as NCCL's, must not.
    store = distributed.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_LONGEST))
    exchange = _Exchange(distributed.PrefixStore("harness", store), rank, size)
    local_rank, local_size = os.environ.get("LOCAL_RANK", rank), os.environ.get("LOCAL_WORLD_SIZE", size)
    return Group(rank, size, exchange, local_rank=int(local_rank), local_size=int(local_size))


class _Exchange:
    """Objects exchanged through torch's key-value store, which all ranks reach.

    A collective can't be used. If a rank fails inside a collective of the op, its next collective wouldn't be the
    one that the other ranks are in. And a collective can't stop waiting and leave its process usable.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._turn = 0

    def __call__(self, value: Any, seconds: float) -> list[Any]:
        from torch.distributed import DistStoreError

        keys = [f"{self._turn}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], pickle.dumps(value))
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except DistStoreError as error:
            raise TimeoutError(f"another rank sent nothing within {seconds:g} s") from error
        found = [pickle.loads(text) for text in self._store.multi_get(keys)]
        # A rank that sends in this turn has read the values of the last turn.
        self._store.delete_key(f"{self._turn - 1}/{self._rank}")
        self._turn += 1
        return found


def _first_failure(found: list[Any]) -> PeerError | None:
    return next((PeerError(*failure) for failure, _ in found if failure), None)
