"""Timelines of several ranks: clocks, waiting and stragglers that the traces were made with are found again."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import MachineError, UsageError
from harness.profile import _torchrun
from harness.profile import torch as tool
from tests.profile.made_ranks import SENDING, Work, alike, write
from tests.rare import rare

US = 1e-6


def by(slow: int, more: float, seed: int = 1) -> Work:
    """Work that takes `more` microseconds longer on one rank."""
    usual = alike(seed)
    return lambda rank, turn: usual(rank, turn) + (more if rank == slow else 0.0)


def test_clocks_are_found_by_the_ends_of_the_same_collectives(tmp_path: Path) -> None:
    ahead = [0.0, 5000.0, -123.0, 40.0]
    found = tool.of_ranks(write(tmp_path, alike(), ahead=ahead, jitter=4))
    assert found.skew.unknown == ""
    assert found.skew.collectives == 24
    for rank, wanted in zip(found.skew.ranks, ahead, strict=True):
        assert rank.clock.ahead == pytest.approx(wanted * US, abs=3 * US)
        assert rank.clock.low <= rank.clock.ahead <= rank.clock.high
        # The ends of two ranks lie at most 4 us apart, either way.
        assert rank.clock.high - rank.clock.low <= 8 * US
    assert 0 < found.skew.scatter <= 8 * US


def test_the_time_of_a_step_is_told_apart(tmp_path: Path) -> None:
    """Rank 1 works 500 us longer in each of four turns of a step, and waits 300 us for its host beside."""
    paths = write(tmp_path, lambda rank, _: 1000.0 + 500 * rank, ranks=2, jitter=0, late=lambda rank, _: 300.0 * rank)
    first, second = tool.of_ranks(paths).skew.ranks
    assert len(first.steps) == 6
    # The first step begins at the mark, 400 us before its first kernel; the last one ends with its last kernel.
    assert first.step == pytest.approx((4 * (1800 + SENDING + 10) + 395 / 6) * US)
    assert first.computing == pytest.approx(4 * 1000 * US)
    assert second.computing == pytest.approx(4 * 1500 * US)
    assert first.waiting == pytest.approx(4 * 800 * US)
    assert second.waiting == pytest.approx(0, abs=1e-9)
    assert first.sending == pytest.approx(4 * SENDING * US)
    assert second.sending == pytest.approx(4 * SENDING * US)
    assert second.idle == pytest.approx((4 * 310 + 395 / 6) * US)
    assert first.until == pytest.approx(first.waiting)
    assert first.after == pytest.approx(first.sending)


def test_waiting_that_other_kernels_hide_costs_nothing(tmp_path: Path) -> None:
    found = tool.of_ranks(write(tmp_path, by(1, 500), ranks=2, beside=900)).skew
    assert found.ranks[0].until == pytest.approx(4 * 500 * US, rel=0.1)
    assert found.ranks[0].waiting == pytest.approx(0, abs=1e-9)
    assert sum(found.ranks[1].costs) == pytest.approx(0, abs=1e-9)


def test_ranks_that_arrive_nearer_than_ends_scatter_arrive_together(tmp_path: Path) -> None:
    found = tool.of_ranks(write(tmp_path, alike(noise=1), jitter=100)).skew
    assert 50 * US < found.scatter < 100 * US
    # Each turn has a last rank; few are later than the others by what the ends scatter by.
    assert sum(rank.last for rank in found.ranks) <= 2


@pytest.mark.parametrize("marks", ["ours", "torch"])
def test_a_planted_straggler_is_found_with_its_cost(tmp_path: Path, marks: str) -> None:
    found = tool.of_ranks(write(tmp_path, by(2, 200), ahead=[0, 900, -900, 7], marks=marks))
    (late,) = found.verdict.stragglers
    assert found.verdict.told == "Rank 2 holds the other ranks up."
    assert late.rank == 2
    # The other ranks' own scatter of 30 us is behind rank 2's lateness: the last of three comes about 25 us late.
    assert 4 * 130 * US < late.low <= late.cost <= late.high < 4 * 210 * US
    assert found.skew.ranks[2].last >= 22
    assert "in as many launches" in late.why
    assert "nvidia-smi" in late.advice


def test_what_a_straggler_should_do_depends_on_why_it_is_late(tmp_path: Path) -> None:
    idle = write(tmp_path, alike(), late=lambda rank, _: 300.0 * (rank == 3))
    (late,) = tool.of_ranks(idle).verdict.stragglers
    assert (late.rank, late.why.split(" is ")[0]) == (3, "Its device")
    assert "host is late" in late.advice
    more = write(tmp_path, by(0, 300), launches=lambda rank: 2 if rank == 0 else 1)
    (late,) = tool.of_ranks(more).verdict.stragglers
    assert late.rank == 0
    assert "12 launches a step where others have 8" in late.why
    assert "GEMM" in late.why


def test_two_stragglers_are_found(tmp_path: Path) -> None:
    usual = alike()
    work = lambda rank, turn: usual(rank, turn) + 400 * (rank == (1, 5)[turn % 2])  # noqa: E731
    found = tool.of_ranks(write(tmp_path, work, ranks=6)).verdict
    assert found.told == "Ranks 1 and 5 hold the other ranks up."
    assert {late.rank for late in found.stragglers} == {1, 5}


@pytest.mark.parametrize("seed", [*range(3), *map(rare, range(3, 12))])
@pytest.mark.parametrize("noise", [2.0, 60.0])
def test_none_is_a_straggler_where_ranks_are_alike(tmp_path: Path, seed: int, noise: float) -> None:
    """A straggler by chance has a probability of at most 5%; seeds are fixed, so these don't have one."""
    found = tool.of_ranks(write(tmp_path, alike(seed, noise=noise))).verdict
    assert found.stragglers == ()
    assert found.told.startswith("No rank" if noise < 10 else ("No rank", "Can't tell whether"))


def test_ranks_that_wait_for_another_rank_each_time_are_told(tmp_path: Path) -> None:
    work = lambda rank, turn: 1000.0 + 400 * (rank == turn % 4)  # noqa: E731
    found = tool.of_ranks(write(tmp_path, work)).verdict
    assert found.stragglers == ()
    assert "each time for another rank" in found.told


def test_few_steps_of_much_noise_cant_tell(tmp_path: Path) -> None:
    found = tool.of_ranks(write(tmp_path, alike(noise=300), steps=3, turns=3)).verdict
    assert found.stragglers == ()
    assert found.told.startswith("Can't tell whether a rank holds the others up: one may cost up to")
    assert "--active 12" in found.told


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"steps": 1, "turns": 4}, "6 collectives or more"),
        ({"marks": ""}, "fewer than two steps"),
        ({"group": str}, "6 collectives or more"),  # no two ranks are in one group
    ],
)
def test_what_traces_dont_tell_is_said(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    found = tool.of_ranks(write(tmp_path, by(1, 500), **changed)).verdict
    assert found.stragglers == ()
    assert found.told.startswith("Can't tell which rank is late")
    assert said in found.told


def test_ranks_that_made_other_collectives_arent_compared(tmp_path: Path) -> None:
    paths = write(tmp_path, alike(), ranks=2)
    whole = json.loads(paths[1].read_text())
    gone = next(event for event in whole["traceEvents"] if event["name"].startswith("nccl"))
    whole["traceEvents"].remove(gone)
    paths[1].write_text(json.dumps(whole))
    found = tool.of_ranks(paths)
    assert "24 of rank 0, 23 of rank 1" in found.skew.left_out[0]
    assert found.verdict.told.startswith("Can't tell")


def test_ranks_that_werent_recorded_are_told(tmp_path: Path) -> None:
    paths = write(tmp_path, alike(), ranks=4)
    assert tool.of_ranks(paths).skew.left_out == ()
    (told,) = tool.of_ranks(paths[1:3]).skew.left_out
    assert told == "2 of 4 ranks were recorded, and who is late is known of these alone"


def test_traces_of_different_steps_are_noticed(tmp_path: Path) -> None:
    """Rank 1's clock runs half as fast again, so no constant lays its times over rank 0's."""
    paths = write(tmp_path, alike(), ranks=2)
    whole = json.loads(paths[1].read_text())
    for event in whole["traceEvents"]:
        event["ts"] = 5_002_000 + (event["ts"] - 5_002_000) * 1.5
    paths[1].write_text(json.dumps(whole))
    found = tool.of_ranks(paths)
    assert found.verdict.stragglers == ()
    assert found.verdict.told.startswith("Can't tell") or found.skew.scatter > 1e-3


def test_a_rank_stands_in_the_trace_or_in_the_files_name(tmp_path: Path) -> None:
    paths = write(tmp_path, alike(), ranks=2)
    for path in paths:
        whole = json.loads(path.read_text())
        del whole["distributedInfo"]
        path.write_text(json.dumps(whole))
    assert [rank.rank for rank in tool.of_ranks(paths[::-1]).skew.ranks] == [0, 1]
    nameless = paths[0].rename(tmp_path / "trace.json")
    with pytest.raises(UsageError, match="doesn't tell which rank"):
        tool.of_ranks([nameless, paths[1]])
    twin = tmp_path / "again-rank1.json"
    twin.write_text(paths[1].read_text())
    with pytest.raises(UsageError, match="is of rank 1, and so is"):
        tool.of_ranks([twin, paths[1]])


def test_one_trace_has_all_ranks_on_one_clock(tmp_path: Path) -> None:
    found = tool.of_ranks(write(tmp_path, alike(), ranks=3, ahead=[0, 5000, -70], jitter=0))
    merged = json.loads(gzip.decompress(tool.merge(found, tmp_path / "out").read_bytes()))
    ends: dict[int, list[float]] = {}
    for event in merged["traceEvents"]:
        if event["name"].startswith("nccl"):
            ends.setdefault(event["pid"], []).append(event["ts"] + event["dur"])
    assert len(ends) == 3, "each rank has processes of its own"
    first, *others = ends.values()
    for other in others:
        assert other == pytest.approx(first, abs=0.5)


def test_the_merged_trace_names_ranks_and_keeps_their_links_apart(tmp_path: Path) -> None:
    paths = write(tmp_path, alike(), ranks=2)
    for path in paths:
        whole = json.loads(path.read_text())
        whole["traceEvents"] += [
            {"ph": "M", "name": "process_name", "pid": 99, "args": {"name": "python"}},
            {"ph": "s", "id": 7, "pid": 99, "tid": 99, "ts": 5_001_000, "cat": "ac2g", "name": "ac2g"},
        ]
        path.write_text(json.dumps(whole))
    merged = json.loads(gzip.decompress(tool.merge(tool.of_ranks(paths), tmp_path).read_bytes()))["traceEvents"]
    names = [event["args"]["name"] for event in merged if event["name"] == "process_name"]
    assert names == ["rank 0: python", "rank 1: python"]
    assert [event["id"] for event in merged if event["ph"] == "s"] == ["0.7", "1.7"]


# ---- Programs that torchrun starts.

PROGRAM = """
import sys, torch, harness
import torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(16)
for _ in range(14):
    for _ in range(2):
        dist.all_reduce(x)
        x = x / 2
    harness.step()
dist.barrier()
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


# test_torchrun_starts_our_script_with_the_users_words has the command, the process of a rank is that of
# test_only_the_chosen_ranks_are_recorded, and the tests above compare traces.
@pytest.mark.slow
def test_the_ranks_of_a_real_program_are_recorded_and_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = ["torchrun", "--nproc-per-node", "2", str(tmp_path / "train.py"), "0"]
    found = tool.of_script(words, tmp_path / "out", tool.WINDOW._replace(wait=4, active=8))
    assert found.exit_code == 0
    assert [path.name for path in found.traces] == ["trace.rank0.json.gz", "trace.rank1.json.gz"]
    told = tool.of_ranks(found.traces)
    # What is said of stragglers depends on the machine's load; how much is compared doesn't.
    assert [len(rank.steps) for rank in told.skew.ranks] == [8, 8]
    assert told.skew.left_out == ()
    assert told.skew.unknown or told.skew.collectives == 16
    assert told.skew.unknown or told.skew.ranks[0].until > 0


def test_torchrun_starts_our_script_with_the_users_words(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import run

    seen: list[Any] = []
    monkeypatch.setattr(run, "run", seen.append)
    monkeypatch.delenv("HARNESS_IMPORTS", raising=False)
    assert _torchrun.main(["t{rank}", "0,3", "10", "5", "--nproc-per-node=2", "-m", "my.train", "--lr", "1"]) == 0
    (parsed,) = seen
    assert parsed.training_script_args == [
        "harness.profile._script", "t{rank}", "0,3", "10", "5", "-m", "my.train", "--lr", "1",
    ]  # fmt: skip
    assert not parsed.module
    assert Path(parsed.training_script).name == "start.py"
    assert parsed.nproc_per_node == "2"


def test_a_program_that_isnt_pythons_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert _torchrun.main(["t", "", "10", "5", "--no-python", "./train"]) == 2
    assert "can't be recorded" in capsys.readouterr().err


@pytest.mark.slow  # the test below has ranks that don't exist
def test_only_the_chosen_ranks_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])\n")
    told = [str(tmp_path / "t{rank}"), "1,3", "10", "5", str(tmp_path / "train.py")]
    command = [sys.executable, "-m", "harness.profile._script", *told]
    for rank in ("1", "2"):
        ended = subprocess.run(
            command, env={**_environment(), "RANK": rank}, capture_output=True, text=True, check=True
        )
        assert ended.stdout == f"rank {rank}\n"
        assert ("recorded in rank 1" in ended.stderr) == (rank == "1")
    assert [path.name for path in tmp_path.glob("t?")] == ["t1"]


def _environment() -> dict[str, str]:
    from harness.processes import python

    return python.environment()


def test_ranks_of_one_process_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(UsageError, match="this program is one process"):
        tool.of_script([str(tmp_path / "train.py")], tmp_path, ranks=[1])


def test_ranks_that_dont_exist_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.rank0.json.gz").write_text("of an earlier run")
    monkeypatch.setattr(tool, "_exit_code", lambda started, environment: 0)
    with pytest.raises(MachineError) as raised:
        tool.of_script(["torchrun", "train.py"], tmp_path, ranks=[7])
    assert "one of the ranks 7 must be started" in raised.value.advice
