"""Under torchrun: `torchrun --nproc-per-node N -m harness ...` starts one process a device, on one host or several.

The process with rank 0 leads: it carries out the command. Each other process keeps one rank of the leader's teams: it
starts the measuring process, passes lines between it and the leader, and ends it. So a rank may die as on one host,
without torchrun's noticing, and the next case has a new one. Leader and keepers talk through sockets, on the port after
torchrun's; `wire` says what.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol

from harness.errors import MachineError, UsageError
from harness.processes.keeper import keep
from harness.processes.place import Place
from harness.processes.rank import GRACE, Beginning, Rank
from harness.processes.wire import Ask, Do, Ended, Hello, Link, Refused, Said, StartRank

_MEET = 60.0  # seconds in which all processes of torchrun must have found the leader
_MOST_UNPROVEN = 100  # connections that wait for a proof; the oldest gives way to a new one


class RankHandle(Protocol):
    """A measuring process of a team, here or on another host: what `Team` needs of it. `Rank` says what each does."""

    number: int

    @property
    def status(self) -> int | None: ...
    @property
    def fate(self) -> str: ...
    def fileno(self) -> int: ...
    def send(self, line: bytes) -> None: ...
    def receive(self) -> bool: ...
    def lines(self) -> Iterator[bytes]: ...
    def close_input(self) -> None: ...
    def interrupt(self) -> None: ...
    def wait(self, deadline: float) -> None: ...
    def begin_kill(self) -> None: ...
    def kill(self) -> None: ...
    def tail(self) -> str: ...


@contextmanager
def joined(place: Place | None = None) -> Iterator[bool]:
    """Take part in torchrun's run. Gives whether this process leads; the other processes are done by then."""
    place = place or Place.from_environment()
    if place.size == 1:
        yield True
    elif place.rank:
        keep(place)
        yield False
    else:
        global _leader  # noqa: PLW0603 - a process is started by torchrun or it isn't
        with Leader(place) as _leader:
            try:
                yield True
            finally:
                _leader = None


# ---- The leader.


class Leader:
    """What rank 0 knows of the other ranks. A context manager; at its end the keepers end too."""

    def __init__(self, place: Place) -> None:
        """Wait until all keepers are there.

        Raises MachineError if the port is taken, or a keeper doesn't come.
        """
        self.size = place.size
        self.address = place.address
        self._place = place
        self._links: dict[int, Link] = {}
        self._hosts = {0: place.host}
        self._turns = 0
        try:
            # Over several hosts the network between them has no name here, so the leader listens on all networks.
            server = socket.create_server(("127.0.0.1" if place.one_host else "", place.port))
        except OSError as error:
            advice = "start torchrun again, and give it another port: --master-port"
            raise MachineError(f"port {place.port}, beside torchrun's own, can't be used: {error}", advice) from error
        try:
            with server:
                self._gather(server)
        except BaseException:
            self.close()
            raise

    def has_on_its_host(self, size: int) -> bool:
        """Whether a team of so many ranks is on this host."""
        return len({self._hosts[number] for number in range(size)}) == 1

    def rank(self, number: int, begin: Beginning) -> RankHandle:
        """Start a rank of a team. Ranks keep torchrun's order. Raises UsageError for another revision's rank."""
        if begin.around or (begin.root and begin.root.resolve() != self._place.root.resolve()):
            raise UsageError(
                f"under torchrun no rank can measure another revision's code, such as that in {begin.root}",
                "start harness gate --base without torchrun, or measure both revisions and judge the two runs: "
                "harness gate REF RUN",
            )
        hosts = [self._hosts[other] for other in range(begin.meeting.size)]
        begin = replace(begin, meeting=replace(begin.meeting, local_size=hosts.count(hosts[number])))
        if number == 0:
            return Rank(0, replace(begin, local=self._place.local_rank))
        self._turns += 1
        return RemoteRank(number, self._turns, self._links[number], begin)

    def _gather(self, server: socket.socket) -> None:
        """Take the keepers' connections. Whoever hasn't proven the secret is waited for beside all others."""
        deadline = time.monotonic() + _MEET
        unproven: deque[Link] = deque()
        while missing := [number for number in range(1, self.size) if number not in self._links]:
            heard: list[Any] = [server, *unproven]
            ready = select.select(heard, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise MachineError(
                    f"rank {missing[0]} of torchrun hasn't come within {_MEET:g} s", "see what it has printed"
                )
            for link in [link for link in unproven if link in ready]:
                self._hear(link)
                if link.proven or not link.open:
                    unproven.remove(link)
                if not link.proven and not link.open:
                    link.close()
            if server in ready:
                unproven.append(Link(server.accept()[0], "leader", self._place.secret))
                unproven[-1].challenge()
            if len(unproven) > _MOST_UNPROVEN:
                unproven.popleft().close()
        for link in unproven:
            link.close()

    def _hear(self, link: Link) -> None:
        """Note a keeper that proves the secret; anybody else is cut off."""
        for hello in link.take(0.0):
            assert isinstance(hello, Hello)
            if not link.has_proven(hello):
                why = "it doesn't know this run's secret"
            elif not 0 < hello.rank < self.size or hello.rank in self._links:
                why = f"it calls itself rank {hello.rank}, which isn't missing"
            else:
                link.welcome()
                self._links[hello.rank], self._hosts[hello.rank] = link, hello.host
                return
            link.send(Refused())
            link.cut(why)

    def close(self) -> None:
        """Let the keepers end."""
        for link in self._links.values():
            link.close()

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_leader: Leader | None = None


def leader() -> Leader | None:
    """What this process leads; None if torchrun didn't start it."""
    return _leader


class RemoteRank:
    """A rank that a keeper has, as the leader sees it. turn: counts ranks; messages of other turns are ignored."""

    def __init__(self, number: int, turn: int, link: Link, begin: Beginning) -> None:
        """Ask the keeper to start the rank."""
        self.number = number
        self._turn, self._link = turn, link
        self._replies: deque[bytes] = deque()
        self._end: Ended | None = None
        meeting = begin.meeting
        folder = meeting.folder.name if meeting.folder else ""
        link.send(StartRank(turn, begin.device, meeting.size, meeting.local_size, meeting.port, folder))

    @property
    def status(self) -> int | None:
        self._take(0.0)
        return self._end.status if self._end else None

    @property
    def fate(self) -> str:
        return self._end.fate if self._end else "lives"

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, line: bytes) -> None:
        self._link.send(Ask(self._turn, line.decode()))

    def receive(self) -> bool:
        self._take(0.0)
        return self._end is None

    def lines(self) -> Iterator[bytes]:
        while self._replies:
            yield self._replies.popleft()

    def close_input(self) -> None:
        self._do("close_input")

    def interrupt(self) -> None:
        self._do("interrupt")

    def wait(self, deadline: float) -> None:
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def begin_kill(self) -> None:
        self._do("kill")

    def kill(self) -> None:
        self.begin_kill()
        self.wait(time.monotonic() + 10 * GRACE)

    def tail(self) -> str:
        return self._end.tail if self._end else ""

    def _do(self, what: Literal["close_input", "interrupt", "kill"]) -> None:
        self._link.send(Do(self._turn, what))

    def _take(self, seconds: float) -> None:
        """Read what the keeper has sent."""
        for message in self._link.take(seconds):
            match message:
                case Said(self._turn, line):
                    self._replies.append(line.encode())
                case Ended(self._turn):
                    self._end = self._end or message
                case _:
                    pass  # of an earlier rank
        if self._end is None and not self._link.open:
            self._end = Ended(self._turn, -9, "lost with the process of torchrun that kept it", "")
