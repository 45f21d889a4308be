"""Under torchrun: `torchrun --nproc-per-node N -m harness ...` starts one process a device, on one host or several.

The process with rank 0 leads: it carries out the command. Each other process keeps one rank of the leader's teams: it
starts the measuring process, passes lines between it and the leader, and ends it. So a rank may die as on one host,
without torchrun's noticing, and the next case has a new one. Leader and keepers talk through sockets, one JSON object a
line, on the port after torchrun's.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from harness.errors import MachineError
from harness.processes.rank import GRACE, Beginning, Rank

_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_")
_MEET = 60.0  # seconds in which all processes of torchrun must have found the leader
_LOOK_EVERY = 0.5
_HIGHEST_PORT = 65535

Message = dict[str, Any]


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


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among torchrun's processes, and where the leader listens. token: the run's name."""

    rank: int
    local_rank: int
    size: int
    address: str
    port: int
    token: str

    @classmethod
    def from_environment(cls) -> Place:
        """The place that torchrun describes.

        What torchrun has set is removed from the environment, since processes that are started later aren't torchrun's.
        """
        given = {name: os.environ.pop(name, "") for name in _SET_BY_TORCHRUN}
        token = os.environ.get("TORCHELASTIC_RUN_ID", "")
        for name in [name for name in os.environ if name.startswith(_PREFIXES)]:
            del os.environ[name]
        port = int(given["MASTER_PORT"])
        beside = port + 1 if port < _HIGHEST_PORT else port - 1
        rank, local, size = (int(given[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        return cls(rank, local, size, given["MASTER_ADDR"], beside, token)


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


class Link:
    """Messages to and from a process on the other end of a socket. An end that is gone sends nothing more."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._received = b""
        self.open = True

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Message) -> None:
        try:
            self._end.sendall(f"{json.dumps(message)}\n".encode())
        except OSError:
            self.open = False

    def take(self, seconds: float) -> list[Message]:
        """The messages that have come; waits for more for so long, if none has."""
        if self.open and select.select([self._end], [], [], max(0.0, seconds))[0]:
            try:
                chunk = self._end.recv(1 << 16)
            except OSError:
                chunk = b""
            self.open = bool(chunk)
            self._received += chunk
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self.open = False
        self._end.close()


# ---- The leader.


class Leader:
    """What rank 0 knows of the other ranks. A context manager; at its end the keepers end too."""

    def __init__(self, place: Place) -> None:
        """Listen. Raises MachineError if the port is taken."""
        self.size = place.size
        self._place = place
        self._links: dict[int, Link] = {}
        self._hosts = {0: socket.gethostname()}
        self._turns = 0
        try:
            self._server = socket.create_server(("", place.port))
        except OSError as error:
            advice = "start torchrun again: with --standalone it takes other ports; else give it one: --master-port"
            raise MachineError(f"port {place.port}, beside torchrun's own, can't be used: {error}", advice) from error

    def address(self) -> str:
        """Where the ranks of a team find rank 0: at home, if they are all here."""
        return "127.0.0.1" if len(set(self._everybody().values())) == 1 else self._place.address

    def rank(self, number: int, size: int, begin: Beginning) -> RankHandle:
        """Start a rank of a team of `size`. Ranks keep torchrun's order."""
        hosts = self._everybody()
        here = sum(hosts[other] == hosts[number] for other in range(size))
        begin = replace(begin, meeting={**begin.meeting, "LOCAL_WORLD_SIZE": str(here)})
        if number == 0:
            return Rank(0, replace(begin, local=self._place.local_rank))
        self._turns += 1
        return RemoteRank(number, self._turns, self._links[number], begin)

    def _everybody(self) -> dict[int, str]:
        """The host of each rank. Waits for ranks that haven't come yet."""
        deadline = time.monotonic() + _MEET
        while len(self._hosts) < self.size:
            self._server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                end, _ = self._server.accept()
            except TimeoutError as error:
                missing = sorted({*range(self.size)} - self._hosts.keys())
                raise MachineError(
                    f"rank {missing[0]} of torchrun hasn't come within {_MEET:g} s", "see what it has printed"
                ) from error
            self._welcome(Link(end))
        return self._hosts

    def _welcome(self, link: Link) -> None:
        """Note a keeper by its first message; anybody else is sent away."""
        with suppress(ValueError, KeyError):
            for hello in link.take(GRACE):
                if hello["token"] == self._place.token and 0 < hello["rank"] < self.size:
                    self._links[hello["rank"]] = link
                    self._hosts[hello["rank"]] = hello["host"]
                    return
        link.close()

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(MachineError):  # a keeper that came later would look for a leader in vain
            self._everybody()
        for link in self._links.values():
            link.close()
        self._server.close()


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
        self._replies: list[bytes] = []
        self._end: Message | None = None
        root = str(begin.root) if begin.root else None
        given = {"device": begin.device, "plugins": [*map(str, begin.plugins)], "meeting": dict(begin.meeting)}
        self._say("start", number=number, root=root, **given)

    @property
    def status(self) -> int | None:
        self._take(0.0)
        return None if self._end is None else int(self._end["status"])

    @property
    def fate(self) -> str:
        return str(self._end["fate"]) if self._end else "lives"

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, line: bytes) -> None:
        self._say("send", line=line.decode())

    def receive(self) -> bool:
        self._take(0.0)
        return self._end is None

    def lines(self) -> Iterator[bytes]:
        while self._replies:
            yield self._replies.pop(0)

    def close_input(self) -> None:
        self._say("close_input")

    def interrupt(self) -> None:
        self._say("interrupt")

    def wait(self, deadline: float) -> None:
        while self._end is None and (left := deadline - time.monotonic()) > 0:
            self._take(left)

    def begin_kill(self) -> None:
        self._say("kill")

    def kill(self) -> None:
        self.begin_kill()
        self.wait(time.monotonic() + 10 * GRACE)

    def tail(self) -> str:
        return str(self._end["tail"]) if self._end else ""

    def _say(self, what: str, **fields: Any) -> None:
        self._link.send({"do": what, "turn": self._turn, **fields})

    def _take(self, seconds: float) -> None:
        """Read what the keeper has sent."""
        for message in self._link.take(seconds):
            if message["turn"] != self._turn:
                continue
            if "reply" in message:
                self._replies.append(message["reply"].encode())
            else:
                self._end = self._end or message
        if self._end is None and not self._link.open:
            self._end = {"status": -9, "fate": "lost with the process of torchrun that kept it", "tail": ""}


# ---- The keepers.


def keep(place: Place) -> None:
    """Keep ranks for the leader until it ends. Raises MachineError if there is no leader."""
    link = Link(_found(place))
    link.send({"rank": place.rank, "token": place.token, "host": socket.gethostname()})
    keeper = _Keeper(link, place.local_rank)
    try:
        while link.open:
            keeper.turn()
    finally:
        keeper.end()


def _found(place: Place) -> socket.socket:
    """A connection to the leader, which may not listen yet."""
    deadline = time.monotonic() + _MEET
    while True:
        try:
            return socket.create_connection((place.address, place.port), timeout=None)
        except OSError as error:
            if time.monotonic() >= deadline:
                where = f"{place.address}:{place.port}"
                raise MachineError(f"rank 0 doesn't answer at {where}: {error}", "see what it has printed") from error
        time.sleep(0.1)


class _Keeper:
    """The rank that is kept now, if there is one, and what the leader has been told of it."""

    def __init__(self, link: Link, local_rank: int) -> None:
        self._link, self._local_rank = link, local_rank
        self._rank: Rank | None = None
        self._turn = 0

    def turn(self) -> None:
        """Wait for the leader or the rank, and pass on what either says."""
        heard: list[Any] = [self._link, self._rank] if self._rank else [self._link]
        select.select(heard, [], [], _LOOK_EVERY)
        if self._rank:
            more = self._rank.receive()
            for line in self._rank.lines():
                self._link.send({"turn": self._turn, "reply": line.decode()})
            if not more:
                self._rank.wait(time.monotonic() + GRACE)
                self.end()
        for message in self._link.take(0.0):
            self._obey(message)

    def end(self) -> None:
        """Kill the rank, and tell the leader how it ended."""
        if self._rank:
            # What a rank says last is lost with its pipe.
            ended = {"status": self._rank.status, "fate": self._rank.fate, "tail": self._rank.tail()}
            self._rank.kill()
            self._rank = None
            self._link.send({"turn": self._turn, **ended, "status": -9 if ended["status"] is None else ended["status"]})

    def _obey(self, message: Message) -> None:
        what = message["do"]
        if what == "start":
            self.end()
            self._turn = message["turn"]
            plugins = tuple(map(Path, message["plugins"]))
            root = Path(message["root"]) if message["root"] else None
            begin = Beginning(message["device"], plugins, message["meeting"], root, self._local_rank)
            self._rank = Rank(message["number"], begin)
        elif self._rank is None or message["turn"] != self._turn:
            return
        elif what == "send":
            self._rank.send(message["line"].encode())
        elif what == "interrupt":
            self._rank.interrupt()
        elif what == "close_input":
            self._rank.close_input()
        else:
            self.end()
