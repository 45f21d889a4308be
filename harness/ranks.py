"""Ranks: the processes that measure one case together. What they exchange, and how they end a case together.

A single process is a group of one, which exchanges nothing.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

FOLDER = "HARNESS_RANKS"
"""The environment variable that names the folder in which ranks of one host meet. Only their user may enter it."""

_LONGEST = 1800.0  # seconds to wait for another rank, which may compile at that time; a job's own limit is shorter
_SHORTEST = 1e-3  # seconds to wait at least: a socket with 0 s doesn't wait, and raises another error
_NUMBER = 4  # bytes of a rank's number
_BETWEEN = b"\t"  # which JSON text has only where it is laid out
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
    none within so many seconds. Values are what JSON can hold: a tuple comes back as a list.

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
        return float(self.exchange(float(value))[0])

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
    """The group that RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE describe.

    Ranks of one host meet in the folder that HARNESS_RANKS names, and open no port of their own. Ranks of several hosts
    meet at MASTER_ADDR and MASTER_PORT, where torch's store of rank 0 listens: whoever reaches this port can write to
    the store. So no rank runs what the store holds.

    It also joins torch's default group, with the backend gloo. An op that needs NCCL makes a group of its own.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    rank = int(os.environ["RANK"])
    folder = os.environ.get(FOLDER)
    exchange = _on_this_host(folder, rank, size) if folder else _over_hosts(rank, size)
    local_rank, local_size = os.environ.get("LOCAL_RANK", rank), os.environ.get("LOCAL_WORLD_SIZE", size)
    return Group(rank, size, exchange, local_rank=int(local_rank), local_size=int(local_size))


def _on_this_host(folder: str, rank: int, size: int) -> Gather:
    """Meet in a folder. Torch's store is a file there, and values go through sockets that are files there, too.

    Torch's store would do for values as well, but a rank looks into a file every 10 ms only. So ranks would begin a
    sample up to 10 ms apart.
    """
    from torch import distributed

    store = distributed.FileStore(os.path.join(folder, "store"), -1)  # noqa: PTH118 - -1: the file's end is the parent's
    through = Sockets(folder, rank, size)
    if rank == 0:
        store.set("listens", "")
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    store.wait(["listens"])
    through.join()
    return through


def _over_hosts(rank: int, size: int) -> Gather:
    """Meet in torch's store, which rank 0 opens on its host."""
    from torch import distributed

    distributed.init_process_group("gloo")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # A connection of its own: while this process waits for a value, another thread of torch, such as NCCL's, must not.
    store = distributed.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=_LONGEST))
    return StoredValues(distributed.PrefixStore("harness", store), rank, size)


class Sockets:
    """Values exchanged through rank 0, by Unix sockets in a folder that no other user can enter.

    A collective can't be used. If a rank fails inside a collective of the op, its next collective wouldn't be the
    one that the other ranks are in. And a collective can't stop waiting and leave its process usable.
    """

    def __init__(self, folder: str, rank: int, size: int) -> None:
        """Listen, if this is rank 0."""
        self._rank = rank
        self._size = size
        self._ends: list[socket.socket] = []
        self._own = socket.socket(socket.AF_UNIX)
        # The path of a socket has 107 bytes at most, so the folder goes by the number of its descriptor.
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._path = f"/proc/self/fd/{self._folder}/values"
        if rank == 0:
            self._own.bind(self._path)
            self._own.listen(size)

    def join(self) -> None:
        """Connect to rank 0, which listens; as rank 0, wait for all other ranks."""
        if self._rank:
            self._own.connect(self._path)
            self._own.sendall(self._rank.to_bytes(_NUMBER))
            self._ends = [self._own]
        else:
            self._own.settimeout(_LONGEST)
            ends = [self._own.accept()[0] for _ in range(1, self._size)]
            # No byte more: the rank's first value may follow at once.
            found = {int.from_bytes(end.recv(_NUMBER, socket.MSG_WAITALL)): end for end in ends}
            self._ends = [found[rank] for rank in range(1, self._size)]
            self._own.close()
        os.close(self._folder)

    def __call__(self, value: Any, seconds: float) -> list[Any]:
        try:
            return _read(self._exchanged(json.dumps(value).encode(), time.monotonic() + seconds))
        except TimeoutError as error:
            raise TimeoutError(_nothing_within(seconds)) from error

    def _exchanged(self, own: bytes, deadline: float) -> list[bytes]:
        if self._rank:
            self._send(own, deadline)
            return _line(self._ends[0], deadline).split(_BETWEEN)
        texts = [own, *(_line(end, deadline) for end in self._ends)]
        self._send(_BETWEEN.join(texts), deadline)
        return texts

    def _send(self, line: bytes, deadline: float) -> None:
        for end in self._ends:
            end.settimeout(max(_SHORTEST, deadline - time.monotonic()))
            # A rank that has ended reads nothing. `_line` says what comes of that.
            with suppress(BrokenPipeError, ConnectionResetError):
                end.sendall(line + b"\n")


def _line(end: socket.socket, deadline: float) -> bytes:
    """The line that a rank sends, which sends one at a time. Raises TimeoutError if there is none by the deadline."""
    received = bytearray()
    while not received.endswith(b"\n"):
        end.settimeout(max(_SHORTEST, deadline - time.monotonic()))
        with suppress(ConnectionResetError):
            if chunk := end.recv(1 << 20):
                received += chunk
                continue
        # The other rank has ended. The parent will say how, unless this rank complains first.
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise TimeoutError
    return bytes(received[:-1])


class StoredValues:
    """Values exchanged through torch's key-value store, which all ranks reach, and others may reach, too."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._turn = 0

    def __call__(self, value: Any, seconds: float) -> list[Any]:
        from torch.distributed import DistStoreError

        keys = [f"{self._turn}/{rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], json.dumps(value))
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except DistStoreError as error:
            raise TimeoutError(_nothing_within(seconds)) from error
        found = _read(self._store.multi_get(keys))
        # A rank that sends in this turn has read the values of the last turn.
        self._store.delete_key(f"{self._turn - 1}/{self._rank}")
        self._turn += 1
        return found


def _nothing_within(seconds: float) -> str:
    return f"another rank sent nothing within {seconds:g} s"


def _read(texts: Iterable[bytes]) -> list[Any]:
    """What the ranks have sent: a failure and a value each. Raises PeerError for anything else, which no rank sends."""
    found = []
    for rank, text in enumerate(texts):
        try:
            sent = json.loads(text)
        except (ValueError, RecursionError):
            sent = None
        match sent:
            case [None | [str(), str()], _]:
                found.append(sent)
            case _:
                raise PeerError("crashed", f"what stands in the place of rank {rank}'s value wasn't sent by a rank")
    return found


def _first_failure(found: list[Any]) -> PeerError | None:
    return next((PeerError(*failure) for failure, _ in found if failure), None)
