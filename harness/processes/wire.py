"""What the processes of torchrun say to each other through a socket: one JSON object a line, of known shape.

Whoever reaches the leader's port may connect, and anybody may listen there before the leader does. So each end proves
that it knows the run's secret before it is listened to: it sends a code (HMAC-SHA256) of numbers that both ends have
just drawn. Each later line carries a code of its own, so nobody between the ends can add or change one.

No message names a file, a folder or a variable of the environment: what is executed is decided where it is executed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import select
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from harness.processes.rank import PREFIX

LONGEST = 1 << 26
"""Bytes of a line at most, from a process that has proven the secret. Samples of a case are the longest message."""
LONGEST_UNPROVEN = 1 << 10
_CODE = 64  # characters of a code

Drawn = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 31)]


@dataclass(frozen=True, slots=True)
class _Message:
    """A message with exactly these fields, of exactly these types."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)


# ---- Before an end has proven the secret.


@dataclass(frozen=True, slots=True)
class Challenge(_Message):
    """The leader's first word: a number to prove the secret with."""

    drawn: Drawn
    kind: Literal["challenge"] = "challenge"


@dataclass(frozen=True, slots=True)
class Hello(_Message):
    """A keeper's answer: who it is, the proof, and a number for the leader to prove the secret with."""

    rank: Count
    host: Count
    drawn: Drawn
    proof: Drawn
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Welcome(_Message):
    """The leader's proof."""

    proof: Drawn
    kind: Literal["welcome"] = "welcome"


@dataclass(frozen=True, slots=True)
class Refused(_Message):
    """The leader doesn't take this process; it says why on its own standard error."""

    kind: Literal["refused"] = "refused"


# ---- From the leader to a keeper. turn: counts the ranks that a keeper was asked for.


@dataclass(frozen=True, slots=True)
class StartRank(_Message):
    """Start a rank. folder: the name of the folder where ranks of one host meet, else ""; other fields: `Meeting`'s."""

    turn: Count
    device: Annotated[str, Field(pattern=r"^\w[\w.-]{0,63}$")]
    size: Count
    local_size: Count
    port: Annotated[int, Field(ge=1, le=65535)]
    folder: Annotated[str, Field(pattern=rf"^({PREFIX}[a-z0-9_]{{1,16}})?$")]
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class Ask(_Message):
    """Pass a line on to the rank."""

    turn: Count
    line: str
    kind: Literal["ask"] = "ask"


@dataclass(frozen=True, slots=True)
class Do(_Message):
    """End the rank in one of these ways."""

    turn: Count
    what: Literal["close_input", "interrupt", "kill"]
    kind: Literal["do"] = "do"


# ---- From a keeper to the leader.


@dataclass(frozen=True, slots=True)
class Said(_Message):
    """A line of the rank."""

    turn: Count
    line: str
    kind: Literal["said"] = "said"


@dataclass(frozen=True, slots=True)
class Ended(_Message):
    """How the rank ended, as `Rank` says it."""

    turn: Count
    status: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
    fate: str
    tail: str
    kind: Literal["ended"] = "ended"


Message = Challenge | Hello | Welcome | Refused | StartRank | Ask | Do | Said | Ended
Role = Literal["leader", "keeper"]
_TAKEN: dict[tuple[Role, bool], TypeAdapter[Any]] = {
    ("leader", False): TypeAdapter(Hello),
    ("keeper", False): TypeAdapter(Annotated[Challenge | Welcome | Refused, Field(discriminator="kind")]),
    ("leader", True): TypeAdapter(Annotated[Said | Ended, Field(discriminator="kind")]),
    ("keeper", True): TypeAdapter(Annotated[StartRank | Ask | Do, Field(discriminator="kind")]),
}
"""What each of the two takes, before the other end has proven the secret and after."""


class Link:
    """Messages to and from the process at the other end of a socket. An end that is gone sends nothing more.

    An end that sends anything else is cut off, with a word on standard error. role: which of the two this end is.
    proven: whether the other end has proven the secret.
    """

    def __init__(self, end: socket.socket, role: Role, secret: bytes) -> None:
        self.open = True
        self.proven = self.was_cut = False
        self._end, self._role, self._secret = end, role, secret
        self._other: Role = "keeper" if role == "leader" else "leader"
        self._drawn = secrets.token_hex()
        self._said: tuple[str | int, ...] = ()
        self._key = b""
        self._sent = self._taken = 0
        self._partial = bytearray()
        self._lines: deque[bytes] = deque()

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Message) -> None:
        line = json.dumps(asdict(message)).encode()
        if self.proven:
            line = self._code_of(self._role, self._sent, line) + line
            self._sent += 1
        try:
            self._end.sendall(line + b"\n")
        except OSError:
            self.open = False

    def take(self, seconds: float) -> Iterator[Message]:
        """The messages that have come; waits for more for so long, if none has."""
        if not self._lines:
            self._receive(seconds)
        while self._lines:
            try:
                message: Message = self._read(self._lines.popleft())
            except ValueError:
                self.cut("it sent what isn't a message of this run")
            else:
                yield message

    def cut(self, why: str) -> None:
        """Listen no more to the other end, and say why."""
        self.open, self.was_cut = False, True
        self._lines.clear()
        with suppress(OSError):
            who = self._end.getpeername()
            self._end.shutdown(socket.SHUT_RDWR)
            # The descriptor stays, for `select`, which then finds the end of the connection.
            sys.stderr.write(f"harness: the connection with {who[0] if who else 'a process'} is cut: {why}\n")

    def close(self) -> None:
        self.open = False
        self._end.close()

    # ---- The proofs.

    def challenge(self) -> None:
        """Ask for a proof, as the leader."""
        self.send(Challenge(self._drawn))

    def introduce(self, challenge: Challenge, rank: int, host: int) -> None:
        """Prove the secret to the leader, as the keeper of this rank on this host."""
        self._said = (challenge.drawn, self._drawn, rank, host)
        self.send(Hello(rank, host, self._drawn, self._proof("keeper")))

    def has_proven(self, hello: Hello) -> bool:
        """Whether a keeper knows the secret."""
        self._said = (self._drawn, hello.drawn, hello.rank, hello.host)
        return hmac.compare_digest(hello.proof, self._proof("keeper"))

    def welcome(self) -> None:
        """Prove the secret to a keeper that has proven it, and listen to it from now on."""
        self.send(Welcome(self._proof("leader")))
        self._trust()

    def is_welcome(self, welcome: Welcome) -> bool:
        """Whether the leader knows the secret, too. If so, listen to it from now on."""
        if hmac.compare_digest(welcome.proof, self._proof("leader")):
            self._trust()
        return self.proven

    def _trust(self) -> None:
        self._key = bytes.fromhex(self._proof("later lines"))
        self.proven = True

    def _proof(self, what: str) -> str:
        """The code of what both ends have said, which differs for each connection and each purpose."""
        return hmac.new(self._secret, json.dumps([what, *self._said]).encode(), hashlib.sha256).hexdigest()

    def _code_of(self, sender: Role, number: int, line: bytes) -> bytes:
        return hmac.new(self._key, f"{sender} {number} ".encode() + line, hashlib.sha256).hexdigest().encode()

    # ---- Lines.

    def _read(self, line: bytes) -> Any:
        """The message in a line. Raises ValueError if there is none that this end takes now."""
        if self.proven:
            code, line = line[:_CODE], line[_CODE:]
            if not hmac.compare_digest(code, self._code_of(self._other, self._taken, line)):
                raise ValueError("another process wrote this line")
            self._taken += 1
        return _TAKEN[self._role, self.proven].validate_json(line)

    def _receive(self, seconds: float) -> None:
        if not self.open or not select.select([self._end], [], [], max(0.0, seconds))[0]:
            return
        try:
            chunk = self._end.recv(1 << 16)
        except OSError:
            chunk = b""
        self.open = bool(chunk)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._lines.append(bytes(self._partial) + end)
            self._partial.clear()
        self._partial += rest
        longest = LONGEST if self.proven else LONGEST_UNPROVEN
        if any(len(line) > longest for line in (*self._lines, self._partial)):
            self._partial.clear()
            self.cut(f"it sent a line of more than {longest} bytes")
