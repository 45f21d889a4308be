"""Cases of several devices under a tool: each rank is a process, and what they did is laid over each other."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli import profile_cases
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.model import Attachment, Case, Job
from harness.profile import CALLS_OF_RANKS, _procedure, _request, _target, _team, _trace, torch
from harness.profile._procedure import Profiled, profile
from harness.profile._request import CaseRan, ProfileRequest
from harness.ranks import Group
from harness.report import rank_tables
from harness.report.tree import Note, Table
from harness.session import EndedError
from harness.store import dump
from tests.profile.made_ranks import alike, write

PLUGIN = Path(__file__).parents[1] / "plugins" / "ranks.py"


def job(variant: str, world: int = 2) -> Job:
    return Job(Case("rank_sum", variant, "float32", (("N", 64),), world=world, device="cpu"))


def profiled(folder: Path, *jobs: Job, **options: Any) -> Profiled:
    return profile("torch", jobs, device="cpu", plugins=[PLUGIN], folder=folder, told=lambda *_: None, **options)


@pytest.mark.slow  # what is below has the parts: answers of ranks, marks, what is made of traces
def test_ranks_are_recorded_and_one_that_fails_costs_only_its_case(tmp_path: Path) -> None:
    found = profiled(tmp_path, job("gloo"), job("refused"), job("gloo", world=1))
    ended = {(ran.case.partition("/")[2], ran.status) for ran in found.cases}
    assert ended == {
        ("gloo/float32/N64", "ok"),
        ("gloo/float32/N64/world=2", "ok"),
        ("refused/float32/N64/world=2", "crashed"),
    }
    (why,) = (ran.error for ran in found.cases if ran.status == "crashed")
    assert "rank 1" in why
    assert "no such tree" in why
    alone, both = found.attachments
    assert not rank_tables.is_of_ranks(alone)
    assert dict(both.series)["rank"] == (0, 1)
    assert all(seconds > 0 for seconds in dict(both.series)["rank_step"])
    *own, merged = (tmp_path / name for name in both.files)
    assert [path.name for path in own] == ["torch-2-1.rank0.json.gz", "torch-2-1.rank1.json.gz"]
    events, _ = _trace.loaded(merged)
    assert sum(event.get("name") == _trace.STEP for event in events) == 2 * CALLS_OF_RANKS


@pytest.mark.slow  # as above
def test_only_chosen_ranks_of_four_are_recorded(tmp_path: Path) -> None:
    (found,) = profiled(tmp_path, job("gloo", world=4), ranks=(1, 3)).attachments
    assert dict(found.series)["rank"] == (1, 3)
    assert "2 of 4 ranks were recorded" in " ".join(found.notes)


# ---- What the traces of ranks become.


def attached(folder: Path, **options: Any) -> Attachment:
    usual = alike()
    write(folder, lambda rank, turn: usual(rank, turn) + 300 * (rank == 1), **options)
    for path in folder.glob("trace.*"):
        compressed = folder / f"torch-1-1.{path.name.removeprefix('trace.')}.gz"
        compressed.write_bytes(gzip.compress(path.read_bytes()))
    for _ in range(2):  # what was written is no trace of a rank
        (found,) = torch.read(folder / "torch-1", ["a/case"], 6)
    return found


def test_who_holds_the_others_up_is_told_beside_what_each_rank_did(tmp_path: Path) -> None:
    found = attached(tmp_path, ranks=3)
    series = dict(found.series)
    assert series["rank"] == (0, 1, 2)
    assert series["rank_cost"][1] > 4 * 200e-6 > series["rank_cost"][0]  # of four turns a step
    parts = ("rank_computing", "rank_waiting", "rank_sending", "rank_idle")
    for place, step in enumerate(series["rank_step"]):
        assert sum(series[name][place] for name in parts) == pytest.approx(step)
    assert found.notes[0] == "Rank 1 holds the other ranks up."
    assert found.notes[1].startswith("Rank 1: It computes ")
    assert (tmp_path / "torch-1-1.ranks.json.gz").is_file()
    table, *notes = rank_tables.blocks([found])
    assert isinstance(table, Table)
    assert [column.head for column in table.columns][:4] == [
        "rank", "call ({unit})", "computing ({unit})", "waiting ({unit})"
    ]  # fmt: skip
    assert notes == [Note(text) for text in found.notes]


def test_few_calls_give_no_advice_that_a_case_cant_take(tmp_path: Path) -> None:
    found = attached(tmp_path, ranks=2, steps=2, late=lambda rank, turn: 2000.0 * ((turn + rank) % 5))
    assert found.notes[0].startswith("Can't tell whether a rank holds the others up")
    assert "--active" not in found.notes[0]


def test_a_single_rank_of_several_tells_nothing_of_waiting(tmp_path: Path) -> None:
    found = attached(tmp_path, ranks=1)
    assert not rank_tables.is_of_ranks(found)
    assert "the only rank that was recorded" in found.notes[0]


# ---- What ranks are asked, and what they answer.


def test_cases_of_equally_many_devices_run_together(tmp_path: Path) -> None:
    jobs = [job("gloo", 2), job("gloo", 1), job("refused", 2)]
    assert _procedure.of_one_world(jobs) == [[jobs[1]], [jobs[0], jobs[2]]]
    part = _procedure.prepared("torch", jobs[::2], device="cpu", plugins=[PLUGIN], folder=tmp_path, ranks=[1])
    assert (part.request.world, part.request.calls, part.request.ranks) == (2, CALLS_OF_RANKS, (1,))
    assert "harness.profile._team" in part.commands[0]


class Ended:
    """A process of a rank that has ended. code: as it ended with."""

    def __init__(self, code: int) -> None:
        self.returncode = code

    def poll(self) -> int:
        return self.returncode


def test_what_the_first_rank_answers_counts_until_a_rank_fails(tmp_path: Path) -> None:
    file = tmp_path / "a.request.json"
    fine, wrong = CaseRan("a", 1, "ok"), CaseRan("b", 2, "crashed", "no data")
    of_first = [fine, replace(wrong, error="the other rank is gone")]
    for rank, answers in enumerate((of_first, [fine, wrong])):
        _request.answers_file(file, rank).write_text("".join(f"{dump(one)}\n" for one in answers))
    ranks: Any = [Ended(0), Ended(1)]
    assert _team._followed(file, ranks) == 1
    assert _request.answers(_request.answers_file(file)) == [fine]
    assert _team._failure(file, 1) == replace(wrong, error="rank 1: no data")
    _request.answers_file(file, 1).write_text(f"{dump(replace(wrong, error='rank 0: no data'))}\n")
    assert _team._failure(file, 1) == replace(wrong, error="rank 0: no data")
    _request.answers_file(file, 1).write_text(f"{dump(fine)}\n")
    assert _team._failure(file, 1) is None


def test_the_rank_that_failed_first_is_told_though_another_one_has_ended_before(tmp_path: Path) -> None:
    file = tmp_path / "a.request.json"
    for rank, (error, second) in enumerate((("connection closed", 20), ("no data", 10))):
        written = _request.answers_file(file, rank)
        written.write_text(f"{dump(CaseRan('a', 1, 'crashed', error))}\n")
        os.utime(written, (second, second))
    ranks: Any = [Ended(1), Ended(1)]
    assert _team._followed(file, ranks) == 1
    _request.answers_file(file, 1).unlink()  # it was killed, say
    assert _team._followed(file, ranks) == 1
    assert _team._followed(file, [Ended(0), Ended(0)]) is None  # type: ignore[list-item]


def tool_way(fails: Exception | None) -> Any:
    @contextmanager
    def running() -> Iterator[Any]:
        def run(_number: int) -> None:
            if fails:
                raise fails

        yield run

    return running()


def test_a_tools_own_way_ends_on_all_ranks_alike() -> None:
    def told(value: Any, _seconds: float) -> list[Any]:
        return [value, [["out_of_memory", "rank 1: no memory left"], None]]

    with _target._alike(tool_way(None), Group(0, 2, told)) as run, pytest.raises(EndedError) as ended:
        run(1)
    assert (ended.value.status, ended.value.text) == ("out_of_memory", "rank 1: no memory left")

    def nobody(_value: Any, _seconds: float) -> list[Any]:
        raise TimeoutError

    own = ValueError("no data")
    with _target._alike(tool_way(own), Group(1, 2, nobody)) as run, pytest.raises(ValueError, match="no data"):
        run(1)


def test_calls_are_marked_in_the_traces_of_ranks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "cache_bytes", 2**12)
    request = ProfileRequest("cpu", (str(PLUGIN),), (job("gloo", 1),), traces=str(tmp_path / "torch-1"))
    file = tmp_path / "a.request.json"
    _request.write(request, file)
    assert _target.main([str(file)]) == 0
    text = json.dumps(_trace.loaded(tmp_path / "torch-1-1.json.gz")[0])
    assert _trace.STEP not in text
    with _target._recording(request, 2, Group(1, 2)) as mark:
        mark(_trace.STEP)
    assert _trace.STEP in json.dumps(_trace.loaded(tmp_path / "torch-1-2.rank1.json.gz")[0])
    with _target._recording(replace(request, ranks=(0,)), 3, Group(1, 2)) as mark:
        mark(_trace.STEP)
    assert not [*tmp_path.glob("torch-1-3*")]


# ---- The command.


def test_ranks_that_no_case_has_are_refused() -> None:
    profile_cases.refuse_ranks((1,), [job("gloo", 2), job("gloo", 1)])
    profile_cases.refuse_ranks((), [job("gloo", 1)])
    with pytest.raises(UsageError, match="--ranks 2,3: a case of 2 devices has the ranks 0 to 1"):
        profile_cases.refuse_ranks((2, 3), [job("gloo", 2), job("gloo", 4)])
    with pytest.raises(UsageError, match="--ranks 0: every case is of one device"):
        profile_cases.refuse_ranks((0,), [job("gloo", 1)])


def test_a_tool_that_watches_one_process_takes_cases_of_one_device() -> None:
    jobs = [job("gloo", 2), job("gloo", 1)]
    assert profile_cases._taken("torch", jobs) == jobs
    assert profile_cases._taken("ncu", jobs) == jobs[1:]
    with pytest.raises(UsageError, match="which ncu doesn't take") as raised:
        profile_cases._taken("ncu", jobs[:1])
    assert "torch" in raised.value.advice
