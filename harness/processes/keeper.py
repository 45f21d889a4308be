"""A process of torchrun that keeps a rank: it starts the measuring process, and passes lines to and from the leader."""

from __future__ import annotations

import select
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.errors import MachineError
from harness.processes.place import SECRET, Place, is_private
from harness.processes.rank import GRACE, Beginning, Meeting, Rank
from harness.processes.wire import Ask, Challenge, Do, Ended, Link, Message, Refused, Said, StartRank, Welcome

_MEET = 60.0  # seconds in which the leader must be found
_LOOK_EVERY = 0.5
_UNKNOWING = "doesn't know this run's secret"


def keep(place: Place) -> None:
    """Keep ranks for the leader until it ends. Raises MachineError if nobody leads who knows the secret."""
    link = _found(place)
    keeper = _Keeper(link, place)
    try:
        while link.open:
            keeper.turn()
    finally:
        keeper.end()
        link.close()


def _found(place: Place) -> Link:
    """A connection to the leader, which may not listen yet."""
    where = f"{place.address}:{place.port}"
    deadline = time.monotonic() + _MEET
    reason = ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            end = socket.create_connection((place.address, place.port), timeout=left)
        except OSError as error:
            reason = str(error)
        else:
            end.settimeout(None)
            link = Link(end, "keeper", place.secret)
            if _is_leader(link, place, deadline):
                return link
            link.close()
            # A leader that has too many connections without a proof closes the oldest, which may be this one.
            reason = "it closed the connection"
        time.sleep(0.1)
    raise MachineError(f"rank 0 doesn't answer at {where}: {reason}", "see what it has printed")


def _is_leader(link: Link, place: Place, deadline: float) -> bool:
    """Prove the secret, and have it proven. False if the other end closed the connection.

    Raises MachineError if whoever listens there doesn't know the secret, or refuses this process.
    """
    while link.open and (left := deadline - time.monotonic()) > 0:
        for message in link.take(left):
            match message:
                case Challenge():
                    link.introduce(message, place.rank, place.host)
                case Welcome() if link.is_welcome(message):
                    return True
                case _:
                    refused = isinstance(message, Refused)
                    raise _not_the_leader(place, "refuses this process" if refused else _UNKNOWING)
    if link.was_cut:
        raise _not_the_leader(place, _UNKNOWING)
    return False


def _not_the_leader(place: Place, does: str) -> MachineError:
    return MachineError(
        f"who listens at {place.address}:{place.port} {does}",
        f"see what rank 0 has printed; {SECRET}, if it is set, must be the same for all processes of a run",
    )


class _Keeper:
    """The rank that is kept now, if there is one, and what the leader has been told of it."""

    def __init__(self, link: Link, place: Place) -> None:
        self._link, self._place = link, place
        self._rank: Rank | None = None
        self._turn = 0

    def turn(self) -> None:
        """Wait for the leader or the rank, and pass on what either says."""
        heard: list[Any] = [self._link, self._rank] if self._rank else [self._link]
        select.select(heard, [], [], _LOOK_EVERY)
        if self._rank:
            more = self._rank.receive()
            for line in self._rank.lines():
                self._link.send(Said(self._turn, line.decode(errors="replace")))
            if not more:
                self._rank.wait(time.monotonic() + GRACE)
                self.end()
        for message in self._link.take(0.0):
            self._obey(message)

    def end(self) -> None:
        """Kill the rank, and tell the leader how it ended."""
        if self._rank:
            # What a rank says last is lost with its pipe.
            status = -9 if self._rank.status is None else self._rank.status
            ended = Ended(self._turn, status, self._rank.fate, self._rank.tail())
            self._rank.kill()
            self._rank = None
            self._link.send(ended)

    def _obey(self, message: Message) -> None:
        match message:
            case StartRank():
                self.end()
                self._turn = message.turn
                self._start(message)
            case Ask(self._turn, line) if self._rank:
                self._rank.send(line.encode())
            case Do(self._turn, "interrupt") if self._rank:
                self._rank.interrupt()
            case Do(self._turn, "close_input") if self._rank:
                self._rank.close_input()
            case Do(self._turn, "kill"):
                self.end()
            case _:
                pass  # for an earlier rank

    def _start(self, asked: StartRank) -> None:
        """Start a rank of this process's own code and plug-ins, which the leader can't choose."""
        place, folder = self._place, None
        if asked.folder:
            folder = Path(tempfile.gettempdir()) / asked.folder
            if not is_private(folder):
                self._link.cut(f"{folder} isn't a folder that this user alone can enter")
                return
        address = "127.0.0.1" if folder else place.address
        meeting = Meeting(asked.size, asked.local_size, address, asked.port, folder)
        self._rank = Rank(place.rank, Beginning(asked.device, place.plugins, meeting, place.root, place.local_rank))
