"""Answers that a case writes itself, or changes, are not believed; the next case is measured as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.model import Case, Job, Measurement, Timing
from harness.processes import team
from harness.processes.messages import Confirmed, Measured, encode
from harness.processes.supervisor import Workers
from tests.processes.test_replies import Scripted

PLUGINS = [Path(__file__).parents[1] / "plugins" / name for name in ("small.py", "forging.py")]
TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)
JOB = Job(Case("forged", "answers", "float32", (("N", 4096),), device="cpu"), TIMING)


def asked(variant: str) -> Job:
    return replace(JOB, case=replace(JOB.case, variant=variant))


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("cpu", PLUGINS) as made:
        yield made


@pytest.mark.slow  # test_intact.py has what counts as replaced, the next test what is forged
def test_a_process_whose_reply_is_replaced(workers: Workers) -> None:
    found = workers.measure(asked("replaces"))
    assert (found.status, found.time) == ("wrong", None)
    assert "__main__._Pipe.send was replaced while the case ran" in str(found.error)


@pytest.mark.slow
def test_a_reply_of_the_case_itself(workers: Workers) -> None:
    found = workers.measure(asked("answers"))
    assert (found.status, found.time) == ("crashed", None)
    assert "the answer isn't believed, since the case may have written it itself: rank 0 answered" in str(found.error)
    after = workers.measure(asked("honest"))
    assert after.status == "ok", after.error
    assert after.time
    assert after.time > 1e-9


ONE = encode(Measured(Measurement(JOB.case, "ok", samples=(1e-6,) * 20), number=1))
CRASHED = encode(Measured(Measurement(JOB.case, "crashed", error="SystemExit: 0"), leaving=True, number=1))
SAID: dict[str, tuple[list[bytes], str | None]] = {
    "nothing else": ([ONE, encode(Confirmed(number=2))], None),
    "the same once more": ([ONE + ONE], "rank 0 answered question 1 twice"),
    "the true answer later": ([ONE, CRASHED], "rank 0 answered question 1, not 2"),
    "no more, since it has ended": ([ONE, b""], "isn't believed"),
    "another answer at its exit": ([CRASHED + ONE], "rank 0 answered question 1 twice"),
}


@pytest.mark.parametrize("name", SAID)
def test_what_a_process_says_beside_its_answer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The first piece is what it says to the question; the second, to whether it stands by that."""
    pieces, wrong = SAID[name]

    class Answering(Scripted):
        status = None if pieces[-1] else 0  # type: ignore[assignment]
        fate = ""

        def send(self, _: bytes) -> None:
            self._lines += pieces.pop(0).split(b"\n")[:-1]

    monkeypatch.setattr(team, "Rank", lambda number, begin: Answering(b""))
    monkeypatch.setattr(Workers, "_ready", lambda *_: team.Team("cpu", (), 1))
    pieces = [*pieces]
    found = Workers("cpu").measure(JOB)
    assert found.status == ("crashed" if wrong else "ok"), found.error
    assert (wrong or "None") in str(found.error)
    assert bool(found.samples) == (wrong is None)
