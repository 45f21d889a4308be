"""What ranks exchange their values through, on one host and over several; and what others put there."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import ranks
from harness.ranks import Group, PeerError
from tests.properties import bounded

Ends = Callable[[int], ranks.Gather]
"""Makes the end of a rank; the ends of several ranks are made at the same time."""


@pytest.fixture
def store() -> Any:
    """The store of rank 0, where other hosts have ranks, too."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(params=["store", "sockets"])
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Ends:
    """What real ranks exchange their values through, each with a connection of its own, here in threads."""
    if request.param == "store":
        from torch.distributed import TCPStore

        server = request.getfixturevalue("store")
        return lambda rank: ranks.StoredValues(TCPStore("127.0.0.1", server.port, is_master=False), rank, 2)
    folder = tmp_path / ("a path that is longer than the path of a socket may be " * 3)
    folder.mkdir()
    made = [ranks.Sockets(str(folder), rank, 2) for rank in range(2)]

    def joined(rank: int) -> ranks.Gather:
        made[rank].join()
        return made[rank]

    return joined


def caught(call: Callable[[Group], Any], group: Group) -> Any:
    try:
        return call(group)
    except (PeerError, TimeoutError) as error:
        return str(error)


def test_values_are_exchanged_until_a_rank_sends_none(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [0.1 * number for number in range(20_000)]  # more bytes than a socket takes at once
    with ThreadPoolExecutor(2) as pool:
        groups = [Group(rank, 2, end) for rank, end in enumerate(pool.map(ends, range(2)))]

        def both(*work: Callable[[Group], Any]) -> list[Any]:
            return list(pool.map(caught, work, groups))

        agreed = both(*[lambda g: [g.agree(10 * g.rank + turn) for turn in range(5)]] * 2)
        assert agreed == [[0, 1, 2, 3, 4]] * 2
        assert both(*[lambda g: g.slowest([float(g.rank)])] * 2) == [[1.0]] * 2
        assert both(*[lambda g: g.slowest(long)] * 2) == [long] * 2
        assert (
            both(*[lambda g: g.exchange(["\t\n", None, {"a": float("inf")}, g.rank])] * 2)
            == [[["\t\n", None, {"a": float("inf")}, rank] for rank in range(2)]] * 2
        )
        assert both(lambda g: g.slowest([1.0]), lambda g: g.failed("wrong", "y").text) == ["rank 1: y"] * 2
        assert both(*[lambda g: g.verdict("no" if g.rank else None)] * 2) == ["rank 1: no"] * 2
        monkeypatch.setattr(ranks, "_PATIENCE", 0.2)
        late = both(lambda _: None, lambda g: g.failed("crashed", "rank 0 waits in a collective"))
        assert late == [None, "another rank sent nothing within 0.2 s"]


def test_values_that_all_ranks_have_read_are_deleted(store: Any) -> None:
    alone = Group(0, 1, ranks.StoredValues(store, 0, 1))
    for turn in range(9):
        assert alone.agree(turn) == turn
    assert store.num_keys() < 6


def test_a_rank_may_send_its_first_value_before_rank_0_looks(tmp_path: Path) -> None:
    first, second = (ranks.Sockets(str(tmp_path), number, 2) for number in range(2))
    second.join()
    second._send(b"[null, 5]", time.monotonic() + 60)
    first.join()
    assert first((None, 1), 60) == [[None, 1], [None, 5]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_ended_is_not_heard(rank: int, tmp_path: Path) -> None:
    made = [ranks.Sockets(str(tmp_path), number, 2) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: one.join(), made))
    for end in made[1 - rank]._ends:
        end.close()
    with pytest.raises(TimeoutError, match=r"sent nothing within 0\.05 s"):
        made[rank]((None, 1), 0.05)


class Evil:
    """An object whose pickle runs code."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Evil, "ran", True)


STRANGE = [
    b"", b"\xff", b"5", b"null", b"[]", b"[1, 2]", b"[null]", b"[null, 1, 2]", b'["wrong", 1]', b'[["wrong"], 1]',
    b'[["wrong", 5], 1]', b'{"a": 1, "b": 2}', b"[" * 100_000, b"[null, " + b"1" * 5000 + b"]", pickle.dumps(Evil()),
    pickle.dumps((None, 1.0)),
]  # fmt: skip


@pytest.mark.parametrize("sent", STRANGE, ids=range(len(STRANGE)))
def test_what_a_stranger_puts_into_the_store_runs_nothing_and_ends_the_case(store: Any, sent: bytes) -> None:
    store.set("0/1", sent)
    group = Group(0, 2, ranks.StoredValues(store, 0, 2))
    with pytest.raises(PeerError, match="in the place of rank 1's value") as caught:
        group.agree(1.0)
    assert caught.value.status == "crashed"
    assert not Evil.ran


@pytest.mark.slow  # tests of ranks read such values
@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(max_size=5) | st.floats(), st.lists).map(json.dumps))
@bounded
def test_whatever_stands_for_a_value_is_one_or_ends_the_case(text: bytes | str) -> None:
    try:
        [(failure, _)] = ranks._read([text if isinstance(text, bytes) else text.encode()])
    except PeerError:
        return
    assert failure is None or [type(word) for word in failure] == [str, str]
