"""Several processes that measure one case, as their parent sees them: played by processes without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import MachineError
from harness.model import Job, Measurement
from harness.processes import team
from harness.processes.supervisor import Workers
from harness.processes.surroundings import Surroundings
from tests.processes.conftest import REPOSITORY
from tests.rare import rare

Revision = Callable[..., Path]
LIMIT = 30.0
"""Seconds after which a wait is an error."""

BODY = """
ECHO = ROOT / "echo"
if variant == "fine" or (variant == "wrong" and RANK != 1):
    measured("ok", error=str(os.getpid()))
elif variant == "wrong":
    measured("wrong", "y[0] is 1")
elif variant == "refused":
    measured("unsupported", "3 elements can't be cut into 2 equal parts")
elif variant == "alone" and RANK == 1:
    measured("wrong", "y[0] is 1")
elif variant == "together":
    measured("wrong", "rank 1: y[0] is 1")
elif variant == "raises" and RANK == int(os.environ["WORLD_SIZE"]) - 1:
    measured("crashed", "ValueError: no such table", leaving=True)
    sys.exit(1)
elif variant == "echoed" and RANK == 0:
    measured("crashed", "rank 1: ValueError: no such table, says rank 0")
    ECHO.touch()
elif variant == "echoed":
    while not ECHO.exists():
        time.sleep(0.01)
    measured("crashed", "ValueError: no such table", leaving=True)
elif variant == "greedy" and RANK == 1:
    measured("out_of_memory", "needs 32 PiB")
elif variant == "dies" and RANK == 1:
    sys.stderr.write("assertion failed\\n")
    os.abort()
elif variant == "exits":
    os._exit(7)
elif variant == "is killed":
    os.kill(os.getpid(), 9)
elif variant == "closes its pipe":
    os.close(FD)
    time.sleep(600)
elif variant == "forks":
    if os.fork() == 0:
        time.sleep(600)
    os._exit(3)
elif variant == "unequal":
    frames = ["/x/harness/ranks.py", "/x/mine.py"] if RANK == 0 else ["/x/mine.py"]
    deep = [*frames, *(f"/x/{number}.py" for number in range(60))]
    stack = ["Stack (most recent call first):", *(f'  File "{file}", line 7 in f' for file in deep)]
    sys.stderr.write("\\n".join(stack))
    sys.stderr.flush()
    time.sleep(600)
elif variant == "late":
    measured("ok", number=question["number"] - (RANK == 1))
else:
    time.sleep(600)
"""


@pytest.fixture
def workers(revision: Revision, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(team, "GRACE", 0.2)
    with Workers("cpu", root=revision(BODY)) as made:
        yield made


@pytest.fixture
def measure(workers: Workers, job: Callable[..., Job]) -> Callable[..., Measurement]:
    def run(variant: str, world: int = 2, timeout: float = 60.0) -> Measurement:
        asked = job(variant, timeout=timeout)
        return workers.measure(replace(asked, case=replace(asked.case, world=world)))

    return run


Measure = Callable[..., Measurement]


@pytest.mark.parametrize(
    ("variant", "status", "error"),
    [
        ("echoed", "crashed", "rank 1: ValueError: no such table"),
        rare("wrong", "wrong", "rank 1: y[0] is 1"),
        rare("together", "wrong", "rank 1: y[0] is 1"),
        rare("alone", "wrong", "rank 1: y[0] is 1"),
        rare("raises", "crashed", "rank 1: ValueError: no such table"),
        ("greedy", "out_of_memory", "rank 1: needs 32 PiB"),
    ],
)
def test_what_one_rank_reports_is_what_comes_of_the_case(
    measure: Measure, variant: str, status: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other rank waits for it: not a timeout."""
    if variant == "echoed":
        monkeypatch.setattr(team, "GRACE", LIMIT)
    found = measure(variant)
    assert (found.status, found.error) == (status, error)


@pytest.mark.parametrize("variant", ["dies", *map(rare, ("wrong", "late", "together", "alone", "raises", "greedy"))])
def test_after_a_failure_a_team_is_started_anew(measure: Measure, variant: str) -> None:
    first = measure("fine")
    assert measure("fine").error == first.error  # The process's number: one team measures one case after the other.
    assert measure(variant).status != "ok"
    after = measure("fine")
    assert after.status == "ok"
    assert after.error != first.error


def test_a_team_goes_on_after_a_case_that_no_rank_has_begun(measure: Measure) -> None:
    """Eight processes take seconds to start, and the smallest collectives can't be cut into eight parts."""
    first = measure("fine")
    assert measure("refused").status == "unsupported"
    assert measure("fine").error == first.error


@pytest.mark.slow  # test_the_end_of_a_single_process_is_told goes on after worse
def test_a_single_process_goes_on_after_a_wrong_result(measure: Measure) -> None:
    first = measure("fine", world=1)
    assert measure("together", world=1).status == "wrong"
    assert measure("fine", world=1).error == first.error


@pytest.mark.slow  # the next test has an answer that isn't taken
def test_an_answer_to_another_question_ends_the_team(measure: Measure) -> None:
    found = measure("late")
    assert found.status == "crashed"
    assert found.error == "rank 1 answered question 0, not 1"


LATE = """
late = ROOT / "late"
if late.exists():
    old = late.read_bytes()
    late.unlink()
    os.write(FD, old)
found = {"case": question["job"]["case"], "status": "ok", "error": variant, "process": question["process"]}
answer = {"kind": "measurement", "measurement": found, "number": question.get("number", 0)}
os.write(FD, json.dumps(answer).encode() + b"\\n")
if variant == "forks":
    late.write_text(json.dumps(answer) + "\\n")
"""
"""What a process does that has forked: it gives an answer once more when the next question is there."""


def test_a_case_that_is_answered_twice_is_not_taken_for_the_next_one(
    revision: Revision, job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variant that forks was stored twice, and the last case never."""
    monkeypatch.setattr(team, "GRACE", 0.2)
    with Workers("cpu", root=revision(LATE)) as workers:
        for asked in (job("forks"), job("fine"), job("slow", n=64)):
            found = workers.measure(asked)
            assert (found.case, found.status, found.error) == (asked.case, "ok", asked.case.variant)


@pytest.mark.slow  # the test above has an answer that isn't taken
def test_the_measurement_of_another_process_index_is_not_taken(revision: Revision, job: Callable[..., Job]) -> None:
    with Workers("cpu", root=revision('measured("ok", process=1)')) as workers:
        assert workers.measure(job("fine"), 1).status == "ok"
        found = workers.measure(job("fine"), 0)
    assert found.status == "crashed"
    assert found.error == "rank 0 answered another question, not 1"


def test_ranks_with_different_codes_measure_nothing(revision: Revision, job: Callable[..., Job]) -> None:
    root = revision('measured("ok")')
    file = root / "harness" / "processes" / "child.py"
    file.write_text(file.read_text().replace('say("ready",', 'say("ready", digest="abc"[RANK],'))
    asked = job("fine")
    with Workers("cpu", root=root) as workers, pytest.raises(MachineError, match="have different codes"):
        workers.measure(replace(asked, case=replace(asked.case, world=2)))


def test_a_rank_that_dies_is_named_with_its_last_words(measure: Measure) -> None:
    found = measure("dies")
    assert found.status == "crashed"
    assert found.error == "rank 1: killed by signal SIGABRT\nassertion failed"


def test_a_death_that_takes_longer_than_the_others_are_given_is_told(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe closes first; the kernel may write its memory to a file before its parent learns of its end."""
    monkeypatch.setattr(team, "GRACE", 0.0)
    assert measure("dies").error == "rank 1: killed by signal SIGABRT\nassertion failed"


def test_a_process_that_closes_its_pipe_and_lives_on_is_named(
    measure: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "_DEATH_LIMIT", 0.0)
    assert measure("closes its pipe", world=1).error == "closed its pipe of replies"


@pytest.mark.parametrize(
    ("variant", "error"),
    [
        rare("exits", "ended with exit status 7"),
        ("is killed", "killed by signal SIGKILL from outside, most likely by the kernel because memory ran out"),
        ("forks", "ended with exit status 3"),  # the child holds the pipe open
        rare("raises", "ValueError: no such table"),
    ],
)
def test_the_end_of_a_single_process_is_told(measure: Measure, variant: str, error: str) -> None:
    found = measure(variant, world=1)
    assert (found.status, found.error) == ("crashed", error)
    assert measure("fine", world=1).status == "ok"


def test_the_last_words_of_a_process_that_does_not_start_are_told(revision: Revision, job: Callable[..., Job]) -> None:
    root = revision("")
    (root / "harness" / "processes" / "child.py").write_text(
        f"import os, sys\nopen({str(root / 'starts')!r}, 'a').write('x')\n"
        "sys.stderr.write('libfrob.so: undefined symbol\\n'); sys.stderr.flush(); os._exit(5)\n"
    )
    with (
        Workers("cpu", root=root) as made,
        pytest.raises(MachineError, match=r"doesn't start: ended with exit status 5\nlibfrob\.so: undefined symbol"),
    ):
        made.measure(job("fine"))
    assert (root / "starts").read_text() == "xx"


def test_all_ranks_are_told_to_end_before_any_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver may take seconds to give back the memory of each GPU, which eight would otherwise take in turn."""
    log: list[str] = []

    class Slow:
        def __init__(self, number: int, _begin: object) -> None:
            self.begin_kill = lambda: log.append(f"told {number}")
            self.kill = lambda: log.append(f"waited for {number}")

    monkeypatch.setattr(team, "Rank", Slow)
    team.Team("cpu", (), 8).kill()
    assert log == [*(f"told {number}" for number in range(8)), *(f"waited for {number}" for number in range(8))]


@pytest.mark.slow  # test_world.py has where ranks of one host listen
def test_ranks_of_one_host_meet_in_a_folder_that_is_theirs_alone(
    revision: Revision, monkeypatch: pytest.MonkeyPatch, job: Callable[..., Job]
) -> None:
    """Gloo, whose connections prove nothing, stays within the host unless the user names a network."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    body = """
found = os.environ["HARNESS_RANKS"]
said = [found, oct(os.stat(found).st_mode)[-3:] if found else "", os.environ.get("GLOO_SOCKET_IFNAME", "")]
measured("ok", error=json.dumps(said))
"""
    asked = job("fine")
    two = replace(asked, case=replace(asked.case, world=2))
    with Workers("cpu", root=revision(body)) as made:
        folder, mode, network = json.loads(made.measure(two).error)
        assert (Path(folder).is_dir(), mode, network) == (True, "700", "lo")
        assert json.loads(made.measure(asked).error) == ["", "", ""]
        assert not Path(folder).exists()
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
        other, _, network = json.loads(made.measure(two).error)
        assert (other != folder, network) == (True, "eth7")
    assert not Path(other).exists()


def test_only_the_ranks_that_have_not_answered_are_overdue(measure: Measure) -> None:
    found = measure("stuck", timeout=0.3)
    assert found.status == "timeout"
    assert str(found.error).splitlines() == ["rank 0: took longer than 0.3 s", "rank 1: took longer than 0.3 s"]


def test_of_ranks_whose_time_is_up_the_one_that_waits_for_no_other_is_named_first(measure: Measure) -> None:
    """And where it is: the innermost frames of a stack are kept, however deep it is."""
    found = str(measure("unequal", timeout=1.0).error)
    first, _, second = found.partition("rank 0: took longer than 1 s")
    assert first.startswith("rank 1: took longer than 1 s")
    assert [part.splitlines()[-1] for part in (first, second)] == [
        '  File "/x/38.py", line 7 in f',
        '  File "/x/37.py", line 7 in f',
    ]
    assert 'File "/x/mine.py", line 7 in f' in first


def test_an_unknown_message_is_no_crash_of_the_case(revision: Revision, job: Callable[..., Job]) -> None:
    """A base that speaks otherwise would look like one whose cases all fail, which nothing is compared with."""
    with Workers("cpu", root=revision('say("x")')) as made, pytest.raises(MachineError, match="can't read") as caught:
        made.measure(job("fine"))
    assert "nearer" in caught.value.advice
    assert made._team
    assert not made._team.alive


@pytest.mark.slow  # collection/test_many_ranks.py has ranks that find each other
def test_children_find_each_other_whatever_a_launcher_has_left(
    revision: Revision, monkeypatch: pytest.MonkeyPatch, job: Callable[..., Job]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "64")
    names = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR"
    root = revision(
        f'(ROOT / str(RANK)).write_text(" ".join(os.environ[name] for name in "{names}".split()))\nmeasured("ok")'
    )
    asked = job("fine")
    with Workers("cpu", root=root) as made:
        assert made.measure(replace(asked, case=replace(asked.case, world=2))).status == "ok"
    assert [(root / rank).read_text() for rank in "01"] == ["0 0 2 127.0.0.1", "1 1 2 127.0.0.1"]


@pytest.mark.slow  # test_child.py has what such a process does, with fakes
def test_a_process_that_waits_has_loaded_torch_and_runs_no_code_of_its_side_before_it_is_asked(tmp_path: Path) -> None:
    plugin, ran = tmp_path / "mine.py", tmp_path / "ran"
    small = (REPOSITORY / "tests" / "plugins" / "small.py").read_text()
    plugin.write_text(f"{small}\nopen({str(ran)!r}, 'w').close()\n")
    with Workers("cpu", (plugin,), around=Surroundings(listen=(tmp_path,))) as made:
        made.load()
        made.wait_until_loaded()
        assert not ran.exists()
        used = dict(made.survey().used)
    assert (ran.exists(), [Path(file).name for file, content in used.items() if len(content) > 1]) == (
        True,
        ["mine.py"],
    )
