"""Cases under a tool: from the request to what the tool found, with a process that dies on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import MachineError, UsageError
from harness.model import Attachment, Case, Job, Timing
from harness.profile import CALLS, _procedure, tools
from harness.profile._procedure import profile
from harness.profile._request import CaseRan
from tests.profile.light import TARGET

PLUGIN = Path(__file__).parents[1] / "plugins" / "faults.py"


@pytest.fixture(autouse=True)
def light_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that doesn't load torch in place of the one that runs cases: `test_target.py` has that."""
    monkeypatch.setattr("harness.processes.python.command", lambda _, arguments: [*TARGET, *arguments])


def jobs(*variants: str) -> list[Job]:
    return [Job(Case("fault", variant, "float32", (("N", 64),), device="cpu")) for variant in variants]


def profiled(folder: Path, *variants: str) -> tuple[_procedure.Profiled, list[CaseRan]]:
    told: list[CaseRan] = []

    def tell(ran: CaseRan, which: str) -> None:
        if which == "1/2":
            told.append(ran)

    return profile("ncu", jobs(*variants), device="cpu", plugins=[PLUGIN], folder=folder, told=tell), told


@pytest.mark.slow  # test_what_was_found_is_kept_as_it_comes
@pytest.mark.usefixtures("fake_ncu")
def test_what_the_tool_found_stands_under_the_ids_of_the_cases(tmp_path: Path) -> None:
    found, told = profiled(tmp_path, "wrong", "fine")
    assert [(ran.case, ran.status) for ran in found.cases] == [
        ("fault/wrong/float32/N64", "wrong"),
        ("fault/fine/float32/N64", "ok"),
    ]
    assert told == list(found.cases)
    (attachment,) = found.attachments
    assert (attachment.case, attachment.tool) == ("fault/fine/float32/N64", "ncu")
    # Bytes and times of the run that counts nothing else, the rest of the other one.
    assert dict(attachment.values) == pytest.approx(
        {"kernels": 1, "time": 20e-6, "read_bytes": 4096, "written_bytes": 4000.5}
    )
    (kernel,) = attachment.kernels
    assert (kernel.name, kernel.launches) == ("copy_kernel", 1)
    assert dict(kernel.values)["time"] == pytest.approx(20e-6)
    assert dict(kernel.values)["instructions"] == 1_234_567
    assert dict(kernel.values)["l2_hit"] == 0.5


@pytest.mark.slow  # the test below has a case that never ends
@pytest.mark.usefixtures("fake_ncu")
def test_a_case_that_kills_its_process_costs_only_itself(tmp_path: Path) -> None:
    found, told = profiled(tmp_path, "fine", "abort", "fine")
    assert [ran.status for ran in found.cases] == ["ok", "crashed", "ok"]
    assert [ran.status for ran in told] == ["ok", "crashed", "ok"]
    assert [attachment.case for attachment in found.attachments] == ["fault/fine/float32/N64"] * 2
    assert {file.name for file in (tmp_path / "profile").glob("*.ncu-rep")} == {
        "ncu-1.bytes.ncu-rep", "ncu-1.details.ncu-rep", "ncu-2.bytes.ncu-rep", "ncu-2.details.ncu-rep"
    }  # fmt: skip


@pytest.mark.slow  # the next test has a process that dies
@pytest.mark.usefixtures("fake_ncu")
def test_a_case_that_ends_by_an_error_is_followed_by_another_process(tmp_path: Path) -> None:
    found, _ = profiled(tmp_path, "crashed", "fine")
    assert [(ran.status, ran.error) for ran in found.cases] == [("crashed", "not as it should be"), ("ok", "")]
    assert [attachment.case for attachment in found.attachments] == ["fault/fine/float32/N64"]


def test_a_case_that_never_ends_costs_only_itself(
    tmp_path: Path, on_the_path: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_procedure, "_SLOWER", 0.5 / Timing().timeout)
    on_the_path("ncu", 'case "$1" in --version) echo Version 2025.3;; *) sleep 60;; esac')
    found, told = profiled(tmp_path, "fine")
    assert [(ran.status, ran.error) for ran in told] == [("timeout", "it didn't end under the tool")]
    assert found.cases == tuple(told)
    assert found.problems == ()


@pytest.mark.usefixtures("fake_ncu")
def test_what_was_found_is_kept_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second part, after a case that ended the process, can't be counted."""
    monkeypatch.setenv("FAKE_FAILS", "ncu-2")
    monkeypatch.setenv("FAKE_SAYS", "==ERROR== ERR_NVGPUCTRPERM")
    kept: list[Attachment] = []
    with pytest.raises(MachineError, match="doesn't let this user read counters"):
        profile("ncu", jobs("fine", "abort", "fine"), device="cpu", plugins=[PLUGIN], folder=tmp_path,
                told=lambda *_: None, keep=kept.extend)  # fmt: skip
    assert [attachment.case for attachment in kept] == ["fault/fine/float32/N64"]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_process_that_dies_after_its_last_case_costs_nothing_if_all_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
) -> None:
    """As where a library frees memory twice when the process ends. The message has the last words."""
    tool = tools()["torch"]
    monkeypatch.setattr(tool, "refuse", lambda: None)
    monkeypatch.setattr(
        tool, "read", lambda _base, cases, _calls: [Attachment(case, "torch", (), ()) for case in cases if is_recorded]
    )
    found = profile("torch", jobs("fine", "abort_later"), device="cpu", plugins=[PLUGIN], folder=tmp_path,
                    told=lambda *_: None)  # fmt: skip
    assert [ran.status for ran in found.cases] == ["ok", "ok"]
    (said,) = found.remarks if is_recorded else found.problems
    assert "double free" in said
    assert said.startswith("its process died after the last case, and nothing is missing: ") == is_recorded
    assert not (found.problems if is_recorded else found.remarks)


def test_a_tool_that_may_not_count_ends_with_what_to_do(
    tmp_path: Path, on_the_path: Callable[[str, str], Path]
) -> None:
    on_the_path(
        "ncu", 'case "$1" in --version) echo Version 2025.3;; *) echo "==ERROR== ERR_NVGPUCTRPERM"; exit 1;; esac'
    )
    with pytest.raises(MachineError, match="doesn't let this user read counters"):
        profiled(tmp_path, "fine")


def test_a_tool_that_ends_without_a_word_is_told_with_its_last_lines(
    tmp_path: Path, on_the_path: Callable[[str, str], Path]
) -> None:
    on_the_path("ncu", 'case "$1" in --version) echo Version 2025.3;; *) echo "no idea"; exit 1;; esac')
    found, _ = profiled(tmp_path, "fine")
    assert [(ran.status, ran.error) for ran in found.cases] == [("crashed", "no idea")]
    assert found.attachments == ()


def test_a_folder_of_profiles_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """The files of a tool would lie where somebody else wants them."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "profile").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(UsageError, match=r"profile is a link to .*elsewhere, and nothing is written through links"):
        _procedure.prepared("torch", [], device="cpu", plugins=(), folder=tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_request_names_everything_that_its_process_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    part = _procedure.prepared("ncu", jobs("fine"), device="cpu", plugins=[PLUGIN], folder=Path("mine"))
    stored = json.loads(part.request_file.read_text())
    assert stored["calls"] == CALLS
    assert stored["plugins"] == [str(PLUGIN)]
    assert part.request_file.is_absolute()
    assert part.commands[0][-1] == str(part.request_file)
    line = _procedure.shown(part.commands[0])
    assert line.startswith("env 'HARNESS_IMPORTS={")
    assert line.endswith(str(part.request_file))
    # A second request gets names of its own.
    again = _procedure.prepared("ncu", jobs("fine"), device="cpu", plugins=[PLUGIN], folder=Path("mine"))
    assert again.base.name == "ncu-2"


def test_nothing_outlives_a_tool_that_is_stopped(
    tmp_path: Path, on_the_path: Callable[[str, str], Path], watched: Callable[[int], Callable[..., bool]]
) -> None:
    left = tmp_path / "left"
    on_the_path(
        "ncu",
        f'case "$1" in --version) echo Version 2025.3;; *) sleep 600 & echo $! > {left}; echo gone; exit 1;; esac',
    )
    profiled(tmp_path, "fine")
    assert watched(int(left.read_text()))(30)
