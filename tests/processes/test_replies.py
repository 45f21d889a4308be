"""What a measuring process may answer: what can't be read is a crash of its case, and nothing worse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import MachineError
from harness.model import Job, Measurement, Work
from harness.processes import rank, team
from harness.processes.messages import Measure, Measured, encode
from harness.processes.supervisor import Workers
from harness.processes.team import LostError, Team
from tests.one_test import one_test
from tests.properties import bounded

Revision = Callable[..., Path]
BODY = """
if variant == "half":
    measured("ok", work={"read": 1.5, "written": 2, "items": 0.5})
elif variant != "fine":
    os.write(FD, b"\\xff\\x00\\x1b[2J\\n" if variant == "garbage" else b"0" * 3000)
    time.sleep(600)
else:
    measured("ok")
"""


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("garbage", r"\\xff\x00\x1b[2J"),
        ("half", "Input should be a valid integer, got a number with a fractional part"),
        ("endless", "'000000"),
    ],
)
def test_an_unreadable_reply_is_a_crash_of_the_case_with_what_was_read(
    revision: Revision, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, variant: str, said: str
) -> None:
    monkeypatch.setattr(rank, "_LONGEST_REPLY", 2000)
    with Workers("cpu", root=revision(BODY)) as made:
        found = made.measure(job(variant))
        assert made.measure(job("fine")).status == "ok"
    assert found.status == "crashed"
    assert str(found.error).startswith("answered what can't be read: ")
    assert said in str(found.error)
    assert len(str(found.error)) < 600


class Scripted:
    """A rank that answers every question with the same bytes. It has no process."""

    status = None

    def __init__(self, answer: bytes) -> None:
        self.number, self._lines = 0, answer.split(b"\n")[:-1]
        self._ready, self._sink = os.pipe()
        os.write(self._sink, b".")

    def fileno(self) -> int:
        return self._ready

    def send(self, line: bytes) -> None:
        pass

    def receive(self) -> bool:
        return bool(self._lines)

    def lines(self) -> Iterator[bytes]:
        while self._lines:
            yield self._lines.pop(0)

    def tail(self) -> str:
        return "said before"

    def wait(self, deadline: float) -> None:
        pass

    def begin_kill(self) -> None:
        pass

    def kill(self) -> None:
        os.close(self._ready)
        os.close(self._sink)


def answered(asked: Job, answer: bytes, root: Path | None = None) -> Measured:
    """What a team makes of a rank's answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "Rank", lambda number, begin: Scripted(answer))
        made = Team("cpu", (), 1, root)
    found = made.ask(Measure(asked), Measured, 60.0)[0]
    made.kill()
    return found


@pytest.fixture(scope="module")
def good(job: Callable[..., Job]) -> bytes:
    return encode(Measured(Measurement(job("fine").case, "ok", work=Work(1, 2)), number=1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@pytest.mark.slow  # the test above has replies that can't be read
def test_any_bytes_are_an_answer_or_a_crash(job: Callable[..., Job], good: bytes) -> None:
    asked = job("fine")
    assert answered(asked, good).measurement.work == Work(1, 2)

    @bounded
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        known: dict[str, Any] = json.loads(good)
        changed = known if data.draw(st.booleans()) else known["measurement"]
        changed[data.draw(st.sampled_from(sorted(changed)))] = data.draw(JSON)
        cut = good[: data.draw(st.integers(0, len(good) - 2))]
        line = data.draw(st.sampled_from([json.dumps(known).encode(), cut]) | st.binary().map(lambda b: b[:99]))
        lost = None
        try:
            answered(asked, line.replace(b"\n", b"") + b"\n")
        except LostError as error:
            lost = error
        assert lost is None or (lost.status == "crashed" and len(lost.text) < 600)

    holds()


@one_test("line", [b'{"kind": "figures"}\n', b"[" * 100_000 + b"\n", b"\n", b'{"kind": "measurement"}\n'])
def test_a_message_of_an_unknown_kind_is_meant_by_another_revision_alone(job: Callable[..., Job], line: bytes) -> None:
    with pytest.raises(LostError, match=r"^answered what can't be read: '[\s\S]*\nsaid before$"):
        answered(job("fine"), line)
    with pytest.raises(MachineError if b"figures" in line else LostError):
        answered(job("fine"), line, root=Path("/elsewhere"))
