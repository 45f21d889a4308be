"""Which files each side used, by what its processes and the kernel tell; from answers that are invented."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.gate import software, submodules, used_code
from harness.gate.records import Side, UsedCode
from harness.gate.used_code import Probed, compared, probe
from harness.model import Case, Job
from harness.processes import hatchery, python, start
from harness.processes.messages import Surveyed
from harness.processes.used import WRITTEN
from tests.gate.used_places import Places, X, probed
from tests.one_test import one_test


def test_files_have_the_names_that_both_sides_have(places: Places, comparison: Callable[..., UsedCode]) -> None:
    """What another harness measures lies where the harness lies in the repository. What only pip reads isn't code."""
    in_base = [places.file(f"tree/{name}") for name in ("b.py", "a.py")]
    made = [places.file(f"made-base/{name}") for name in ("measured/harness/m.py", "site/k.py", "site/RECORD")]
    in_now = [places.file("repository/a.py", "y"), places.file("made-now/WHEEL"), places.file("repository/RECORD")]
    gone = places.top / "tree" / "gone.py"
    elsewhere = places.file("elsewhere/lib.so")
    found = comparison(probed(*in_base, *made, gone, elsewhere), probed(*in_now))
    names = (str(elsewhere), "a.py", "b.py", "pkg/harness/m.py", "{made}/site/k.py")
    assert found.base == tuple((name, X) for name in names)
    assert found.now == (("RECORD", X), ("a.py", hashlib.sha256(b"y").hexdigest()))
    assert found.shared == ()


def test_files_that_another_process_opened_count_where_they_are_of_a_side(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """A digest that a process told stays: it is of what that process used."""
    told, heard = places.file("tree/a.h"), places.file("tree/b.h")
    of_another = places.file("elsewhere/c.h")
    base = replace(probed(told, opened=(told, heard, of_another)), files={told: "as it was"})
    assert comparison(base, probed()).base == (("a.h", "as it was"), ("b.h", X))


def test_files_of_the_other_side_or_of_nobody_are_shared(places: Places, comparison: Callable[..., UsedCode]) -> None:
    """All of the working tree that the base used; of what lies elsewhere, what both used. Scenarios both read."""
    ours, opened, by_another = (places.file(f"repository/{name}.py") for name in ("ours", "opened", "by_another"))
    both, heard, alone = (places.file(f"elsewhere/{name}.so") for name in ("both", "heard", "alone"))
    scenario = places.file("repository/s.yaml")
    own = places.file("tree/own.py")
    base = probed(ours, both, heard, alone, scenario, own, opened=(opened, by_another, own))
    now = probed(both, opened, own, opened=(heard,))
    found = comparison(base, now, scenarios={scenario})
    assert found.shared == tuple(sorted((str(both), str(heard), "opened.py", "ours.py")))
    assert "s.yaml" not in dict(found.base)
    assert "own.py" in dict(found.base)


def test_a_change_counts_where_a_side_used_the_file_or_asked_about_it_or_used_a_copy(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    used = places.file("tree/used.py", "1")
    copied = places.file("repository/copied.py", "2")
    copy = places.file("made-now/site/copied.py", "2")
    elsewhere = places.file("elsewhere/same.py", "3")
    empties = [places.file("repository/empty.py", ""), places.file("made-now/site/empty.py", "")]
    for name, text in (("same.py", "3"), ("unused.py", "4")):
        places.file(f"repository/{name}", text)
    names = ("used.py", "copied.py", "asked.py", "asked_now.py", "same.py", "unused.py", "empty.py", "gone.py")
    base = probed(used, asked=(places.top / "tree" / "asked.py", places.top / "repository" / "unused.py"))
    now = probed(copy, elsewhere, empties[1], asked=(places.top / "repository" / "asked_now.py",))
    scenario = places.file("repository/s.yaml")
    found = comparison(base, now, (*names, "s.yaml", "sub"), {scenario, places.file("elsewhere/t.yaml")})
    assert copied.exists()
    assert found.changed == ("asked.py", "asked_now.py", "copied.py", "used.py")
    assert found.unused == ("empty.py", "gone.py", "same.py", "unused.py")


def test_a_file_or_folder_counts_that_is_there_on_one_side_alone_where_a_side_has_asked_about_it(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """By its name, by a folder around it, or by asking which names there are. No digest says that it's there."""
    names = ("listed/slow", "seen/deep/slow", "new/slow", "listed/old", "listed/known", "elsewhere/slow")
    for name in names:
        places.file(f"repository/{name}", "")
    for name in ("listed/known", "elsewhere/there"):
        places.file(f"tree/{name}", "1")
    tree, repository = places.top / "tree", places.top / "repository"
    base = probed(asked=(tree / "listed" / "*", tree / "new"))
    now = probed(asked=(repository / "seen" / "deep", repository / "elsewhere"))
    found = comparison(base, now, names)
    assert found.changed == ("listed/old", "listed/slow", "new/slow", "seen/deep/slow")
    assert found.unused == ("elsewhere/slow", "listed/known"), "what a folder holds tells no file's content"


def test_a_list_of_names_tells_of_a_folder_that_is_new_not_of_what_is_in_it(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    places.file("repository/new/deep/slow", "")
    for listed, is_told in (("", True), ("new/deep", False)):
        found = comparison(probed(asked=(places.top / "tree" / listed / "*",)), probed(), ("new/deep/slow",))
        assert (found.changed == ("new/deep/slow",)) == is_told


def test_a_module_that_git_has_compiled_counts_where_its_source_is_used(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """Python may run what is kept compiled, whatever the source says."""
    sources = [places.file(f"{tree}/a.py") for tree in ("tree", "repository")]
    compiled = ("__pycache__/a.cpython-311.pyc", "__pycache__/b.cpython-311.pyc")
    found = comparison(probed(sources[0]), probed(sources[1]), compiled)
    assert (found.changed, found.unused) == (compiled[:1], compiled[1:])


def test_what_measures_is_the_same_code_though_one_side_alone_used_it(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """The process of the base reads scenarios, which the other's needn't. Ops count, and so does a difference."""
    ours = {name: f"pkg/harness/{name}" for name in ("m.py", "scenario.py", "collection/op.py", "nn.py")}
    used = {side: [places.file(f"{side}/{name}") for name in ours.values()] for side in ("tree", "repository")}
    found = comparison(probed(*used["tree"][:2]), probed(used["repository"][0]))
    assert found.same
    assert found.base == found.now == ((ours["m.py"], X),)
    assert not comparison(probed(*used["tree"][:3]), probed(used["repository"][0])).same
    assert not comparison(probed(*used["tree"]), probed(*used["repository"][:3])).same
    places.file(f"repository/{ours['scenario.py']}", "y")
    assert not comparison(probed(*used["tree"][:2]), probed(used["repository"][0])).same


@pytest.mark.parametrize("script", [start, hatchery])
def test_a_file_that_starts_the_processes_of_both_sides_is_not_shared(
    script: ModuleType, places: Places, comparison: Callable[..., UsedCode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the harness's own repository it is the working tree's for both, and torch's compiler reads it."""
    starts, used = places.file("repository/start.py"), places.file("repository/a.py")
    monkeypatch.setattr(script, "__file__", str(starts))
    found = comparison(probed(starts), probed(starts, used), ("start.py",))
    assert (found.shared, found.base, found.now) == ((), (), (("a.py", X),))
    assert found.unused == ("start.py",), "it is told if it has changed"


def test_what_git_ignores_and_the_base_does_not_have_is_unmatched(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """As an extension that was built in the working tree alone: the base may use something slower in its place."""
    ignored = ("fast.so", "heard.so", "notes.log", "both.so", "kept/12/k.so", "kept/b.bin", "mine.egg-info/PKG-INFO")
    now = {name: places.file(f"repository/{name}") for name in (*ignored, "new.py")}
    base = [places.file(f"tree/{name}") for name in ("both.so", "kept/34/k.so", "kept/a.bin")]
    used = [file for name, file in now.items() if name not in ("heard.so", "notes.log")]
    opened = (now["heard.so"], now["notes.log"])
    hidden = (*ignored, "kept/34/k.so", "kept/a.bin")
    found = comparison(probed(*base), probed(*used, opened=opened), ignored=hidden)
    assert found.unmatched == ("fast.so", "heard.so")
    assert comparison(probed(*base[:1]), probed(*used), ignored=hidden).unmatched == (
        "fast.so", "kept/12/k.so", "kept/b.bin",
    )  # fmt: skip


@pytest.mark.parametrize("side", ["base", "now"])
def test_what_git_ignores_is_unmatched_where_a_side_only_asked_whether_it_is_there(
    places: Places, comparison: Callable[..., UsedCode], monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """As a file that switches something on. What both have, made meanwhile, and of other software, says nothing."""
    names = ("flag", "folder/inside", "both", "tracked/flag", ".venv/x", ".git/HEAD")
    for name in names:
        places.file(f"repository/{name}")
    places.file("tree/both")
    monkeypatch.setattr(sys, "prefix", str(places.top / "repository" / ".venv"))
    asked = tuple(places.top / {"base": "tree", "now": "repository"}[side] / name
                  for name in (*names, "folder", "tracked", "gone"))  # fmt: skip
    ignored = ("flag", "folder/inside", ".venv/x", ".git/HEAD")
    both = {"base": probed(), "now": probed()} | {side: probed(asked=asked)}
    assert comparison(both["base"], both["now"], ignored=ignored).unmatched == ("flag", "folder", "folder/inside")
    both["now"] = replace(both["now"], during=(0, time.time() + 1))
    assert comparison(both["base"], both["now"], ignored=ignored).unmatched == ()


def test_files_that_git_calls_the_same_are_told_where_they_are_not(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """As a pointer of git-lfs on one side. What git ignores is built, and may be another one each time."""
    names = ("pointer.bin", "changed.py", "built.so", "same.py")
    sides = [[places.file(f"{tree}/{name}", tree[: None if name != "same.py" else 0]) for name in names]
             for tree in ("tree", "repository")]  # fmt: skip
    found = comparison(probed(*sides[0]), probed(*sides[1]), ("changed.py",), ignored=("built.so",))
    assert found.filtered == ("pointer.bin",)


@pytest.mark.parametrize(
    ("source", "told"),
    [("kernel.cu", True), ("tools.py", False), ("old.cu", False), ("gone.cu", False), ("opened.cu", False)],
)
def test_what_was_built_before_a_changed_source_is_told(
    places: Places, comparison: Callable[..., UsedCode], source: str, told: bool
) -> None:
    """Both sides may have built it, the working tree long ago."""
    made = [places.file(f"{tree}/build/libk.so.1") for tree in ("tree", "repository")]
    outside, prepared = places.file("elsewhere/libo.so"), places.file("made-now/site/libm.so")
    version = places.file("repository/build/_version.py")
    for file in (made[1], outside, prepared, version):
        os.utime(file, (1000, 1000))
    if source != "gone.cu":
        os.utime(places.file(f"repository/{source}", "s"), (999, 999) if source == "old.cu" else (1001, 1001))
    now = probed(made[1], outside, prepared, version, *([places.top / "repository" / source] * (source == "opened.cu")))
    found = comparison(probed(made[0]), now, (source,), ignored=("build/libk.so.1", "build/_version.py"))
    assert found.older == (("build/libk.so.1",) if told else ())


def test_what_was_built_is_held_against_the_newest_of_all_changed_sources(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    built = places.file("repository/libk.so")
    for file, when in ((built, 1000), (places.file("repository/a.cu"), 1001), (places.file("repository/b.cu"), 999)):
        os.utime(file, (when, when))
    found = comparison(probed(), probed(built), ("a.cu", "b.cu"), ignored=("libk.so",))
    assert found.older == ("libk.so",)


@pytest.mark.parametrize("module", ["sitecustomize", "usercustomize"])
def test_what_python_runs_when_it_begins_holds_for_both_sides(
    places: Places, comparison: Callable[..., UsedCode], monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """In this process, whose variables both sides have. It is a finding only if the module has changed."""
    file, ours = places.file(f"repository/{module}.py"), places.file("repository/a.py")
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__file__=str(file)))
    assert comparison(probed(), probed(ours), (f"{module}.py",)).shared == (f"{module}.py",)
    assert comparison(probed(), probed(ours), ("a.py",)).shared == ()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__file__="/usr/lib/python3/sitecustomize.py"))
    assert comparison(probed(), probed(ours), (f"{module}.py",)).shared == ()


@one_test(("now", "complete"), [("absent", False), ("x", False), ("other", True)])
def test_what_a_started_process_asks_about_nobody_knows(now: str, complete: bool) -> None:
    """Whether a file is there, or its mode. A file with other contents is opened, and that is seen."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        places = Places(Path(folder))
        places.file("tree/flag")
        if now != "absent":
            places.file("repository/flag", now)
        patch.setattr(submodules, "listed", lambda _: [])
        for tree in ("tree", "repository"):
            places.file(f"{tree}/other", tree)
        patch.setattr(submodules, "changed", lambda *_: ["flag", "other", "used.py"])
        patch.setattr(submodules, "at", lambda *_: {})
        used = places.file("repository/used.py")
        for asked, known in (((places.top / "tree" / "**",), complete), ((), True)):
            sides: dict[Side, Probed] = {"base": probed(asked=asked), "now": probed(used)}
            found = compared(places.repository, places.codes, sides, set())
            assert (found.changed, found.unused, found.complete) == (("used.py",), ("flag", "other"), known)


def test_other_software_and_versions_are_told_and_whether_all_is_known(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    for side, needs in (("tree", "torch"), ("repository", "torch>2")):
        places.file(f"{side}/pyproject.toml", f'[project]\ndependencies = ["{needs}"]\n')
    versions = [{"torch": version} for version in ("2.11", "2.12")]
    found = comparison(probed(software=versions[0]), probed(software=versions[1]), ("pyproject.toml", "a.lock", "b.py"))
    assert found.software == ("a.lock", "pyproject.toml")
    assert found.versions == tuple(software.differing(*versions)) != ()
    assert found.complete
    for known in (True, False):
        assert not comparison(probed(complete=known), probed(complete=not known)).complete
        assert not comparison(probed(fine=known), probed(fine=not known)).complete, "a crash may come before an import"


class Asked:
    """Processes that end the cases so, each of which has used a file of the case's name and asked about another."""

    def __init__(self, statuses: dict[str, str]) -> None:
        self.statuses, self.log, self.there = statuses, list[str](), str(Path(__file__))

    def measure(self, job: Job, *, timed: bool) -> Any:
        assert not timed
        self.log.append(f"measure {job.case.op}")
        return SimpleNamespace(status=self.statuses[job.case.op])

    def survey(self) -> Surveyed:
        op = self.log[-2].removeprefix("measure ")
        self.log.append("survey")
        used = (f"/tree/{op}.py", X), (f"/tree/{op}.txt", ""), (self.there, ""), (f"/home/{op}.log", WRITTEN)
        return Surveyed((), (), used=used, software=((op, "1"),))

    def so_far(self) -> frozenset[Path]:
        self.log.append("opened")
        # git, which a process asks for the names of modules, reads the file .git of a worktree.
        return frozenset(
            {
                Path("/tree/a.h"),
                Path("/tree/.git"),
                Path("/tree/harness/a.h"),
                python.own_root() / "harness" / "check.py",
            }
        )


@one_test(
    ("statuses", "fine"),
    [(("ok", "ok"), True), (("ok", "skipped"), True), (("unsupported", "ok"), True), (("ok", "wrong"), False)],
)
def test_each_case_is_checked_once_and_what_it_used_is_asked_at_once(statuses: tuple[str, ...], fine: bool) -> None:
    workers: Any = Asked(dict(zip("ab", statuses, strict=True)))
    workers.complete = fine
    jobs = [Job(Case(op, "v", "float32", (("N", 8),))) for op in "ab"]
    began = time.time()
    found = probe(workers, jobs, workers, Path("/tree"))
    assert workers.log == ["measure a", "opened", "survey", "measure b", "opened", "survey", "opened"]
    assert found.files == {Path("/tree/a.py"): X, Path("/tree/b.py"): X}
    assert found.asked == {Path("/tree/a.txt"), Path("/tree/b.txt"), Path(workers.there)}
    paths = (*found.files, *found.asked)
    assert found.there == dict.fromkeys(paths, "") | {Path(workers.there): str(Path(workers.there).stat().st_size)}
    assert found.written == {Path("/home/a.log"), Path("/home/b.log")}
    assert began <= found.during[0] <= found.during[1] <= time.time()
    assert found.opened == {Path("/tree/a.h")}
    assert (found.complete, found.fine) == (fine, fine)
    assert found.right == {job.case.id for job, status in zip(jobs, statuses, strict=True) if status == "ok"}
    assert found.software == {"a": "1", "b": "1"}


def test_the_files_of_another_harness_that_measures_are_not_edited_ones(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the names of files in the working tree, but other contents."""
    names = ("harness/measure.py", "harness_ops.py", "mine.py")
    for name in names:
        places.file(f"repository/{name}", "new")
    monkeypatch.setattr(submodules, "listed", lambda _: names)
    used = UsedCode(now=(*((name, "1") for name in names), ("other.py", "3")))
    code = places.codes["now"]
    assert used_code.edited(code, used) == names
    assert used_code.edited(replace(code, own_root=code.folder), used) == names[1:]
    assert used_code.edited(replace(code, folder=None), used) == ()
