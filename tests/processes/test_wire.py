"""Messages between the processes of torchrun, whatever comes in their place."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.processes import wire
from harness.processes.wire import Ask, Challenge, Do, Ended, Hello, Link, Message, Said, StartRank, Welcome
from tests.one_test import one_test
from tests.properties import bounded

SECRET = b"a secret of a run that is long enough"
START = StartRank(1, "cpu", 2, 2, 29500, "harness-ranks-abc_123")


@contextmanager
def ends(secret: bytes = SECRET) -> Iterator[tuple[Link, socket.socket]]:
    """A keeper's link, and the other end of its socket."""
    near, far = socket.socketpair()
    with near, far:
        yield Link(near, "keeper", secret), far


@contextmanager
def proven() -> Iterator[tuple[Link, Link, socket.socket, socket.socket]]:
    """A leader's link and a keeper's, which have proven the secret to each other, and their sockets."""
    near, far = socket.socketpair()
    with near, far:
        leader, keeper = Link(near, "leader", SECRET), Link(far, "keeper", SECRET)
        leader.challenge()
        [challenge] = keeper.take(60)
        assert isinstance(challenge, Challenge)
        keeper.introduce(challenge, 3, 1)
        [hello] = leader.take(60)
        assert isinstance(hello, Hello)
        assert (hello.rank, hello.host) == (3, 1)
        assert leader.has_proven(hello)
        leader.welcome()
        [welcome] = keeper.take(60)
        assert isinstance(welcome, Welcome)
        assert keeper.is_welcome(welcome)
        yield leader, keeper, near, far


def test_both_ends_hear_each_other_once_both_have_proven_the_secret() -> None:
    said = [Said(1, "ä\n\x00"), Ended(1, -9, "killed", "")]
    asked: list[Message] = [START, Ask(1, "x" * 100_000), Do(1, "kill")]
    with proven() as (leader, keeper, _, _):
        for message in asked:
            leader.send(message)
        found: list[Message] = []
        while len(found) < 3:
            found += keeper.take(60)
        assert found == asked
        for answer in said:
            keeper.send(answer)
        assert [*leader.take(60)] == said


@one_test("changed", ["rank", "host", "drawn", "proof"])
def test_a_proof_is_of_one_process_and_one_connection(changed: str) -> None:
    """So a proof that was heard can't be used again, and nobody gets another rank by it."""
    near, far = socket.socketpair()
    with near, far:
        leader, keeper = Link(near, "leader", SECRET), Link(far, "keeper", SECRET)
        leader.challenge()
        [challenge] = keeper.take(60)
        assert isinstance(challenge, Challenge)
        keeper.introduce(challenge, 3, 1)
        [hello] = leader.take(60)
        assert isinstance(hello, Hello)
        other = {"rank": 4, "host": 2, "drawn": "0" * 64, "proof": "0" * 64}
        lie = Hello(
            **{**{name: getattr(hello, name) for name in ("rank", "host", "drawn", "proof")}, changed: other[changed]}
        )
        assert not leader.has_proven(lie)
        assert leader.has_proven(hello)
        assert not Link(near, "leader", SECRET).has_proven(hello)
        assert not Link(near, "leader", b"another secret").has_proven(hello)
        # What a keeper proves is no proof of a leader.
        assert not keeper.is_welcome(Welcome(hello.proof))
        assert not keeper.proven


def test_who_has_proven_nothing_can_order_nothing() -> None:
    with ends() as (link, far):
        far.sendall(json.dumps({"kind": "start", "turn": 1, "device": "cpu", "size": 2}).encode() + b"\n")
        assert [*link.take(60)] == []
        assert link.was_cut


@pytest.mark.parametrize("what", ["added", "changed", "repeated", "left out", "returned"])
def test_a_line_that_somebody_between_the_ends_has_touched_ends_the_connection(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with proven() as (leader, keeper, near, far):
        sent: list[bytes] = []
        for message in (Ask(1, "a"), Ask(1, "b")):
            leader.send(message)
            sent.append(far.recv(1 << 16))
        first, second = sent
        touched = {
            "added": b'{"kind": "do", "turn": 1, "what": "kill"}\n',
            "changed": first.replace(b'"a"', b'"z"'),
            "repeated": first + first,
            "left out": second,
            "returned": b"",
        }[what]
        if what == "returned":
            far.sendall(first)
            assert [*leader.take(60)] == []
            assert leader.was_cut
        else:
            near.sendall(touched)
            found = [*keeper.take(60)]
            assert found == ([Ask(1, "a")] if what == "repeated" else [])
            assert keeper.was_cut
    assert "is cut: it sent what isn't a message of this run" in capsys.readouterr().err


SHAPES: list[dict[str, Any]] = [
    {"root": "/tmp/theirs"},
    {"plugins": []},
    {"turn": True},
    {"turn": "1"},
    {"turn": 1.0},
    {"turn": None},
    {"turn": -1},
    {"turn": 10**400},
    {"size": []},
    {"port": 0},
    {"port": 1 << 16},
    {"device": "--ops"},
    {"device": "cpu\n"},
    {"device": "x" * 65},
    {"folder": "../harness-ranks-a"},
    {"folder": "harness-ranks-a/../.."},
    {"folder": "harness-ranks-"},
    {"folder": "/tmp"},
    {"folder": "harness-ranks-a\n"},
    {"kind": "begin"},
    {"kind": ["start"]},
    {"kind": "challenge", "drawn": "0" * 64},
]


@one_test("changed", SHAPES, ids=map(json.dumps, SHAPES))
def test_who_knows_the_secret_can_say_only_what_has_a_known_shape(changed: dict[str, Any]) -> None:
    with proven() as (leader, keeper, near, _):
        leader.send(START)
        assert [*keeper.take(60)] == [START]
        line = json.dumps({**asdict(START), **changed}).encode()
        near.sendall(leader._code_of("leader", 1, line) + line + b"\n")
        assert [*keeper.take(60)] == []
        assert keeper.was_cut


def test_a_line_without_an_end_is_not_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 100_000)
    with proven() as (leader, _, _, far):
        far.setblocking(False)
        for _ in range(20):
            try:
                far.send(b"x" * 50_000)
            except OSError:
                break
            assert [*leader.take(60)] == []
        assert leader.was_cut
        assert len(leader._partial) == 0
    assert "a line of more than 100000 bytes" in capsys.readouterr().err


def test_standard_error_that_nobody_reads_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    with ends() as (link, far):
        far.sendall(b"5\n")
        assert [*link.take(60)] == []
        assert link.was_cut


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("turn", "device", "size", "local_size", "port", "folder", "line", "what", "status", "fate", "tail", "drawn")
messages = st.dictionaries(st.sampled_from(NAMES), values, max_size=8).flatmap(
    lambda fields: st.sampled_from(
        ["start", "ask", "do", "said", "ended", "challenge", "welcome", "refused", "hello"]
    ).map(lambda kind: {**fields, "kind": kind})
)
lines = st.one_of(
    st.binary(max_size=200),
    values.map(lambda value: json.dumps(value).encode()),
    messages.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 3000).map(lambda depth: b"[" * depth),
    st.integers(1, 3000).map(lambda depth: b'{"a":' * depth),
    st.integers(1, 6000).map(lambda digits: b'{"kind":"do","turn":' + b"1" * digits + b"}"),
)


@pytest.mark.slow  # the tests above have strangers
@given(st.lists(lines, max_size=4))
@bounded
def test_whatever_a_stranger_sends_is_a_message_or_ends_the_connection(sent: list[bytes]) -> None:
    with ends() as (link, far):
        far.sendall(b"".join(line + b"\n" for line in sent))
        far.shutdown(socket.SHUT_WR)
        while link.open:
            for message in link.take(60):
                assert isinstance(message, Challenge | Welcome | wire.Refused)
        assert not link.proven


@pytest.mark.slow  # the tests above have such messages
@given(st.lists(lines, max_size=4))
@bounded
def test_whatever_who_knows_the_secret_sends_is_a_message_or_ends_the_connection(sent: list[bytes]) -> None:
    with proven() as (leader, keeper, near, _):
        for number, line in enumerate(sent):
            near.sendall(leader._code_of("leader", number, line) + line + b"\n")
        near.shutdown(socket.SHUT_WR)
        while keeper.open:
            for message in keeper.take(60):
                assert isinstance(message, StartRank | Ask | Do)
                assert message.turn in range(1 << 31)
