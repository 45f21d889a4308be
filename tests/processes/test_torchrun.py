"""Leader and keepers of torchrun, in threads of one process, with measuring processes without torch."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.model import Job, Measurement
from harness.processes import messages, team, torchrun
from harness.processes.rank import Beginning
from harness.processes.supervisor import Workers
from harness.processes.torchrun import Place

BODY = """
if variant == "abort" and RANK == 1:
    print("no such tree", file=sys.stderr, flush=True)
    os.abort()
if variant == "endless" and RANK == 1:
    time.sleep(60)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
(ROOT / f"{variant}-{RANK}").write_text(" ".join(os.environ[name] for name in names))
measured("ok")
"""

Measure = Callable[..., Measurement]


def place(rank: int, size: int = 2) -> Place:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return Place(rank, rank, size, "127.0.0.1", probe.getsockname()[1], "a-run")


@pytest.fixture
def root(revision: Callable[..., Path]) -> Path:
    return revision(BODY)


@pytest.fixture
def measure(root: Path, job: Callable[..., Job]) -> Iterator[Measure]:
    """Measures on two ranks, of which a keeper has the second one."""
    first = place(0)
    second = threading.Thread(target=torchrun.keep, args=[replace(first, rank=1, local_rank=1)])
    second.start()
    with torchrun.joined(first) as leads, Workers("cpu", root=root) as workers:
        assert leads

        def measure(variant: str, world: int = 2, timeout: float = 60.0) -> Measurement:
            asked = job(variant, timeout=timeout)
            return workers.measure(replace(asked, case=replace(asked.case, world=world)))

        yield measure
    second.join(60)
    assert not second.is_alive()
    assert torchrun.leader() is None


def has_answered(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    """From the first answer to a case of this variant on, it is an hour later."""
    late, decode = [0.0], messages.decode_reply

    def decode_reply(line: bytes) -> messages.Reply:
        reply = decode(line)
        if isinstance(reply, messages.Measured) and reply.measurement.case.variant == variant:
            late[0] = 3600.0
        return reply

    monkeypatch.setattr(messages, "decode_reply", decode_reply)
    monkeypatch.setattr(team, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late[0]))


def test_a_rank_that_a_keeper_has_may_die_or_hang_and_the_next_case_is_right(
    measure: Measure, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure("fine").status == "ok"
    assert [(root / f"fine-{rank}").read_text() for rank in (0, 1)] == ["0 2 2", "1 2 2"]
    died = measure("abort")
    assert died.status == "crashed"
    assert "rank 1: killed by signal SIGABRT\nno such tree" in str(died.error)
    assert measure("fine").status == "ok"
    has_answered(monkeypatch, "endless")
    hung = measure("endless")
    assert (hung.status, str(hung.error).partition(" longer")[0]) == ("timeout", "rank 1: took")
    assert measure("fine").status == "ok"
    assert measure("fine", world=1).status == "ok"


def test_ranks_on_two_hosts_have_the_devices_of_their_host(
    root: Path, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts of four: six ranks are four on the first and two on the second."""

    def host() -> str:
        rank = threading.current_thread().name.removeprefix("rank ")
        return f"host {int(rank) // 4}" if rank.isdigit() else "host 0"

    monkeypatch.setattr("socket.gethostname", host)
    first = place(0, size=8)
    places = [replace(first, rank=rank, local_rank=rank % 4) for rank in range(1, 8)]
    keepers = [threading.Thread(target=torchrun.keep, args=[one], name=f"rank {one.rank}") for one in places]
    for keeper in keepers:
        keeper.start()
    with torchrun.joined(first), Workers("cpu", root=root) as workers:
        for world in (8, 6):
            asked = job("fine")
            assert workers.measure(replace(asked, case=replace(asked.case, world=world))).status == "ok"
            told = [(root / f"fine-{rank}").read_text() for rank in range(world)]
            assert told == [f"{rank % 4} {min(4, world - rank // 4 * 4)} {world}" for rank in range(world)]
    for keeper in keepers:
        keeper.join(10)
    assert not any(keeper.is_alive() for keeper in keepers)


def test_more_ranks_than_torchrun_has_started_are_unsupported(measure: Measure) -> None:
    found = measure("fine", world=3)
    assert (found.status, found.error) == ("unsupported", "needs 3 devices, torchrun has started 2 processes")


def test_what_torchrun_has_set_is_not_left_to_later_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a-host"}
    for name, value in {**given, "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    found = Place.from_environment()
    assert found == Place(3, 1, 4, "a-host", 29501, "x")
    assert not {*given, "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_RANK"} & os.environ.keys()


def test_a_stranger_is_sent_away(root: Path) -> None:
    first = place(0)
    with torchrun.Leader(first) as leader:
        stranger = socket.create_connection(("127.0.0.1", first.port))
        stranger.sendall(b'{"rank": 1, "token": "another-run", "host": "h"}\n')
        keeper = threading.Thread(target=torchrun.keep, args=[replace(first, rank=1)])
        keeper.start()
        assert leader.address() == "127.0.0.1"
        assert stranger.recv(1) == b""
        stranger.close()
    keeper.join(10)
    assert not keeper.is_alive()


def test_what_an_earlier_rank_says_is_not_taken_for_the_next_one_s() -> None:
    near, far = socket.socketpair()
    with near, far:
        rank = torchrun.RemoteRank(1, 5, torchrun.Link(near), Beginning("cpu", (), {}))
        for message in ('{"turn": 4, "reply": "old"}', '{"turn": 4, "status": -9, "fate": "killed", "tail": ""}'):
            far.sendall(f"{message}\n".encode())
        far.sendall(b'{"turn": 5, "reply": "new"}\n')
        assert rank.receive()
        assert [*rank.lines()] == [b"new"]
        far.close()
        assert not rank.receive()
        assert (rank.status, rank.fate) == (-9, "lost with the process of torchrun that kept it")
