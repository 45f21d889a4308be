"""Leader and keepers of torchrun, in threads of one process, with measuring processes without torch."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.errors import MachineError, UsageError
from harness.model import Job, Measurement
from harness.processes import keeper, messages, team, torchrun
from harness.processes.keeper import keep
from harness.processes.place import Place
from harness.processes.rank import Beginning, Meeting, Rank
from harness.processes.supervisor import Workers
from harness.processes.torchrun import Leader
from harness.processes.wire import Challenge, Ended, Hello, Link, Said, Welcome
from tests.rare import rare

BODY = """
if variant == "abort" and RANK == 1:
    print("no such tree", file=sys.stderr, flush=True)
    os.abort()
if variant == "endless" and RANK == 1:
    time.sleep(60)
names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR")
(ROOT / f"{variant}-{RANK}").write_text(" ".join(os.environ[name] for name in names))
measured("ok")
"""

Measure = Callable[..., Measurement]


SECRET = b"a secret of a run that is long enough"


def place(size: int = 2, root: Path = Path("/nowhere")) -> Place:
    """The first of so many processes on this host."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    return Place(0, 0, size, host=0, one_host=True, address="127.0.0.1", port=port, secret=SECRET, root=root)


@pytest.fixture
def root(revision: Callable[..., Path]) -> Path:
    return revision(BODY)


@pytest.fixture
def measure(root: Path, job: Callable[..., Job]) -> Iterator[Measure]:
    """Measures on two ranks, of which a keeper has the second one."""
    first = place(root=root)
    second = threading.Thread(target=keep, args=[replace(first, rank=1, local_rank=1)])
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


@pytest.mark.slow  # test_team.py has such ranks
def test_a_rank_that_a_keeper_has_may_die_or_hang_and_the_next_case_is_right(
    measure: Measure, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measure("fine").status == "ok"
    assert [(root / f"fine-{rank}").read_text() for rank in (0, 1)] == ["0 2 2 127.0.0.1", "1 2 2 127.0.0.1"]
    died = measure("abort")
    assert died.status == "crashed"
    assert "rank 1: killed by signal SIGABRT\nno such tree" in str(died.error)
    assert measure("fine").status == "ok"
    has_answered(monkeypatch, "endless")
    hung = measure("endless")
    assert (hung.status, str(hung.error).partition(" longer")[0]) == ("timeout", "rank 1: took")
    assert measure("fine").status == "ok"
    assert measure("fine", world=1).status == "ok"


@pytest.mark.parametrize("worlds", [(3,), rare((4, 3, 2))])
def test_ranks_on_two_hosts_have_the_devices_of_their_host(
    root: Path, job: Callable[..., Job], worlds: tuple[int, ...]
) -> None:
    """Two hosts of two: three ranks are two on the first and one on the second."""
    first = replace(place(4, root), one_host=False, address="localhost")
    places = [replace(first, rank=rank, local_rank=rank % 2, host=rank // 2) for rank in range(1, 4)]
    keepers = [threading.Thread(target=keep, args=[one]) for one in places]
    for one in keepers:
        one.start()
    with torchrun.joined(first), Workers("cpu", root=root) as workers:
        for world in worlds:
            asked = job("fine")
            assert workers.measure(replace(asked, case=replace(asked.case, world=world))).status == "ok"
            told = [(root / f"fine-{rank}").read_text() for rank in range(world)]
            address = "127.0.0.1" if world == 2 else "localhost"
            assert told == [f"{rank % 2} {min(2, world - rank // 2 * 2)} {world} {address}" for rank in range(world)]
    for one in keepers:
        one.join(10)
    assert not any(one.is_alive() for one in keepers)


def test_more_ranks_than_torchrun_has_started_are_unsupported(measure: Measure) -> None:
    found = measure("fine", world=3)
    assert (found.status, found.error) == ("unsupported", "needs 3 devices, torchrun has started 2 processes")


def test_no_rank_has_the_code_of_another_revision(measure: Measure, job: Callable[..., Job], tmp_path: Path) -> None:
    """A keeper starts its own code only, since nobody may tell it what to execute."""
    asked = job("fine")
    with (
        Workers("cpu", root=tmp_path) as workers,
        pytest.raises(UsageError, match="another revision's code") as caught,
    ):
        workers.measure(replace(asked, case=replace(asked.case, world=2)))
    assert "without torchrun" in caught.value.advice


@contextmanager
def gathering(first: Place) -> Iterator[Future[Leader]]:
    """A leader that waits for its keepers."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Leader, first)
        yield waiting
        waiting.result(60).close()


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    """A connection to the leader, which may not listen yet."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=60)
        except ConnectionRefusedError:
            pass


@contextmanager
def kept(own: Place) -> Iterator[None]:
    thread = threading.Thread(target=keep, args=[own])
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def rest(end: socket.socket) -> bytes:
    """All that the other end sends until it closes the connection."""
    found = b""
    try:
        while chunk := end.recv(1 << 16):
            found += chunk
    except ConnectionResetError:
        pass
    return found


LIES = {
    "number": b"5\n",
    "list": b"[]\n",
    "nothing": b"null\n",
    "deep": b"[" * 1000 + b"\n",
    "endless": b"[" * 100_000,
    "no text": b"\xff\xfe\n",
    "earlier protocol": b'{"rank": 1, "token": "a-run", "host": "h"}\n',
    "no proof": b'{"kind": "hello", "rank": 1, "host": 0}\n',
    "huge rank": b'{"kind": "hello", "rank": 1' + b"0" * 400 + b', "host": 0, "drawn": "", "proof": ""}\n',
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_who_sends_anything_but_a_proof_is_cut_off_and_nobody_else(
    lie: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    first = place()
    with gathering(first) as waiting, connected(first.port) as stranger:
        with suppress(ConnectionError):  # the leader may have heard enough before the end
            stranger.sendall(lie)
        rest(stranger)
        assert not waiting.done()
        with kept(replace(first, rank=1)):
            assert waiting.result(60).has_on_its_host(2)
            waiting.result().close()
    assert "harness: the connection with 127.0.0.1 is cut: it sent" in capsys.readouterr().err


def test_who_does_not_know_the_secret_takes_nobody_s_place(capsys: pytest.CaptureFixture[str]) -> None:
    first = place()
    with gathering(first) as waiting:
        with pytest.raises(MachineError, match="refuses this process") as caught:
            keep(replace(first, rank=1, secret=b"another secret, of another run"))
        assert "HARNESS_SECRET" in caught.value.advice
        assert not waiting.done()
        with kept(replace(first, rank=1)):
            waiting.result(60).close()
    assert "it doesn't know this run's secret" in capsys.readouterr().err


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_who_knows_the_secret_takes_no_place_that_is_taken(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    first = place(3)
    with gathering(first) as waiting, connected(first.port) as end:
        link = Link(end, "keeper", SECRET)
        [challenge] = link.take(60)
        assert isinstance(challenge, Challenge)
        link.introduce(challenge, 1, 0)
        [welcome] = link.take(60)
        assert isinstance(welcome, Welcome)
        with pytest.raises(MachineError, match="refuses this process"):
            keep(replace(first, rank=rank))
        assert not waiting.done()
        with kept(replace(first, rank=2)):
            waiting.result(60).close()
    assert f"it calls itself rank {rank}, which isn't missing" in capsys.readouterr().err


def test_a_connection_that_says_nothing_holds_nobody_up() -> None:
    first = place()
    silent = []
    with gathering(first) as waiting:
        for _ in range(120):
            silent.append(connected(first.port))
            silent[-1].recv(1)  # the leader has taken it
        with kept(replace(first, rank=1)):
            waiting.result(60).close()
    for end in silent:
        rest(end)
        end.close()


def test_on_one_host_the_leader_listens_at_loopback_and_not_longer_than_it_has_to() -> None:
    """An address of this host that isn't the one that the leader listens at stands for its address in a network."""
    first = place()
    with gathering(first) as waiting:
        connected(first.port).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", first.port))
        with kept(replace(first, rank=1)):
            leader = waiting.result(60)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", first.port))
            leader.close()


ANSWERS = {
    "orders": b'{"do": "start", "turn": 1, "number": 1, "root": "/tmp/evil", "device": "cpu", "plugins": [], '
    b'"meeting": {}}\n',
    "start": b'{"kind": "start", "turn": 1, "device": "cpu", "size": 2, "local_size": 2, "port": 1, "folder": ""}\n',
    "no proof": b'{"kind": "challenge", "drawn": "' + b"0" * 64 + b'"}\n{"kind": "welcome", "proof": "'
    + b"0" * 64 + b'"}\n',
    "welcome first": b'{"kind": "welcome", "proof": "' + b"0" * 64 + b'"}\n',
    "endless": b"x" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_keeper_obeys_nobody_who_does_not_know_the_secret(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(keeper, "Rank", lambda *given: started.append(given))
    own = replace(place(), rank=1)
    with socket.create_server((own.address, own.port)) as server, ThreadPoolExecutor(1) as pool:
        kept = pool.submit(keep, own)
        impostor, _ = server.accept()
        impostor.sendall(answer)
        error = kept.exception(60)
        impostor.close()
    assert isinstance(error, MachineError)
    assert "doesn't know this run's secret" in error.message
    assert started == []


def linked(own: Place) -> tuple[Link, Future[None], ThreadPoolExecutor]:
    """A keeper in a thread, and a link to it as a leader has it."""
    pool = ThreadPoolExecutor(1)
    with socket.create_server((own.address, own.port)) as server:
        kept = pool.submit(keep, own)
        link = Link(server.accept()[0], "leader", own.secret)
    link.challenge()
    [hello] = link.take(60)
    assert isinstance(hello, Hello)
    assert link.has_proven(hello)
    link.welcome()
    return link, kept, pool


def test_a_keeper_starts_what_its_own_command_names(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Beginning] = []

    class Noted(Rank):
        def __init__(self, number: int, begin: Beginning) -> None:
            begun.append(begin)
            super().__init__(number, begin)

    monkeypatch.setattr(keeper, "Rank", Noted)
    own = replace(place(root=root), rank=1, local_rank=1, plugins=(Path("mine.py"),))
    link, kept, pool = linked(own)
    asked = Beginning("cpu", (Path("/tmp/theirs.py"),), Meeting(2, 2, "a-host", 7), Path("/tmp/theirs"))
    rank = torchrun.RemoteRank(1, 1, link, asked)
    rank.kill()
    link.close()
    kept.result(60)
    pool.shutdown()
    assert begun == [Beginning("cpu", (Path("mine.py"),), Meeting(2, 2, "127.0.0.1", 7), root, 1)]


def test_a_keeper_takes_no_folder_that_others_can_enter(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = tmp_path / "harness-ranks-a"
    folder.mkdir(0o755)
    link, kept, pool = linked(replace(place(root=root), rank=1))
    rank = torchrun.RemoteRank(1, 1, link, Beginning("cpu", (), Meeting(2, 2, "", 7, folder)))
    kept.result(60)
    pool.shutdown()
    assert not rank.receive()
    assert rank.fate.startswith("lost")
    link.close()
    assert "harness-ranks-a isn't a folder that this user alone can enter" in capsys.readouterr().err


def test_what_an_earlier_rank_says_is_not_taken_for_the_next_one_s() -> None:
    near, far = socket.socketpair()
    with near, far:
        link, other = Link(near, "leader", SECRET), Link(far, "keeper", SECRET)
        link.challenge()
        [challenge] = other.take(60)
        assert isinstance(challenge, Challenge)
        other.introduce(challenge, 1, 0)
        [hello] = link.take(60)
        assert isinstance(hello, Hello)
        assert link.has_proven(hello)
        link.welcome()
        rank = torchrun.RemoteRank(1, 5, link, Beginning("cpu", (), Meeting(2, 2, "", 7)))
        welcome = next(other.take(60))
        assert isinstance(welcome, Welcome)
        assert other.is_welcome(welcome)
        other.send(Said(4, "old"))
        other.send(Ended(4, -9, "killed", ""))
        other.send(Said(5, "new"))
        assert rank.receive()
        assert [*rank.lines()] == [b"new"]
        other.close()
        assert not rank.receive()
        assert (rank.status, rank.fate) == (-9, "lost with the process of torchrun that kept it")
