"""Which files outside of both trees the sides shared; from answers that are invented."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.gate.records import UsedCode
from harness.processes.used import EVERYTHING
from tests.gate.used_places import Places, X, probed


def test_what_the_base_asked_about_and_the_working_tree_found_is_shared(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """The base's process made it, as a cache does that is kept by a name outside of both trees."""
    kept, ours = places.file("elsewhere/kept.pt"), places.file("repository/a.py")
    other = places.file("elsewhere/other.pt")
    found = comparison(probed(asked=(kept, ours, other)), probed(kept, ours))
    assert found.shared == (str(kept),)


def test_what_one_side_writes_where_the_other_one_looks_is_shared(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """As a tuner keeps plans by their names in the home folder. A log that both write, and nobody reads, isn't."""
    plan, new, old, log = (places.file(f"elsewhere/{name}") for name in ("plan", "new", "old", "log"))
    gone, ours = places.top / "elsewhere" / "gone", places.file("repository/new.py")
    assert comparison(probed(written=frozenset({plan, log})), probed(plan)).shared == (str(plan),)
    looked = probed(old, log, there={new: "", gone: "", ours: "", new.parent: "folder"})
    old.write_text("changed")
    assert comparison(looked, probed()).shared == (str(new), str(old))
    assert comparison(probed(), replace(probed(), files={gone: X})).shared == (), "as a library built for a moment"
    changed = plan.stat().st_ctime
    for during, shared in (((changed, changed + 1), (str(plan),)), ((changed + 1, changed + 2), ()), ((0, 1), ())):
        assert comparison(probed(during=during), probed(plan, ours)).shared == shared, "as torch.save writes"
    assert comparison(probed(written=frozenset({log})), probed(written=frozenset({log}))).shared == ()


@pytest.mark.parametrize(("was", "shared"), [("", True), ("folder", False), ("1", True)])
def test_a_folder_that_one_side_makes_where_the_other_one_looks_is_shared(
    places: Places, comparison: Callable[..., UsedCode], was: str, shared: bool
) -> None:
    switch = places.file("elsewhere/switch/on").parent
    found = comparison(probed(there={switch: was}), probed())
    assert found.shared == ((str(switch),) if shared else ())


@pytest.mark.parametrize(("was", "shared"), [("1", False), ("2", True), ("folder", True)])
def test_a_file_whose_size_one_side_changes_where_the_other_one_looks_is_shared(
    places: Places, comparison: Callable[..., UsedCode], was: str, shared: bool
) -> None:
    file = places.file("elsewhere/plan")
    assert comparison(probed(there={file: was}), probed()).shared == ((str(file),) if shared else ())


def test_what_one_side_removes_where_the_other_one_looks_is_shared(
    places: Places, comparison: Callable[..., UsedCode]
) -> None:
    """As a plan in an older form, which the working tree's code clears away: the base works without it then."""
    read, seen, never = (places.file(f"elsewhere/{name}") for name in ("read", "seen", "never"))
    base = probed(read, there={read: "1", seen: "1", never: ""})
    for file in (read, seen, never):
        file.unlink()
    assert comparison(base, probed()).shared == (str(read), str(seen))


@pytest.mark.parametrize("writes", ["base", "now"])
def test_a_file_that_one_side_writes_is_shared_where_the_other_one_only_looks(
    places: Places, comparison: Callable[..., UsedCode], writes: str
) -> None:
    """The file was there from the start, since the gate's process loads the ops of the working tree."""
    file = places.file("elsewhere/plan")
    wrote, other = probed(written=frozenset({file})), "now" if writes == "base" else "base"
    for looked, shared in (
        (probed(asked=(file,), there={file: "1"}), (str(file),)),
        (probed(file), (str(file),)),
        (probed(asked=(file,), there={file: "1"}, written=frozenset({file})), ()),  # as a lock, which both take
    ):
        sides = {writes: wrote, other: looked}
        assert comparison(sides["base"], sides["now"]).shared == shared


@pytest.mark.parametrize(("writes", "lists"), [("base", "now"), ("now", "base")])
def test_a_file_that_one_side_writes_where_the_other_one_lists_names_is_shared(
    places: Places, comparison: Callable[..., UsedCode], writes: str, lists: str
) -> None:
    file = places.file("elsewhere/plans/12.json")
    sides = {writes: probed(written=frozenset({file})), lists: probed(asked=(file.parent / EVERYTHING,))}
    assert comparison(sides["base"], sides["now"]).shared == (str(file),)
    sides[lists] = probed(asked=(file.parent.parent / EVERYTHING,))
    assert comparison(sides["base"], sides["now"]).shared == ()


def test_what_lies_beside_the_working_tree_alone_is_told(places: Places, comparison: Callable[..., UsedCode]) -> None:
    """As a plan that an op finds by its own place. The base looked beside its own tree, and found none."""
    plan, other, inside = (places.file(f"around/{name}") for name in ("plan.json", "other.json", "repository/a.py"))
    both = places.file("tree-around/both.json")
    places.codes["now"] = replace(places.codes["now"], folder=inside.parent)
    places.codes["base"] = replace(places.codes["base"], folder=places.top / "tree-around" / "tree")
    looked = tuple(places.top / "tree-around" / name for name in ("plan.json", "both.json", "tree/a.py"))
    here = SimpleNamespace(top=inside.parent, package=None)
    now = probed(plan, other, inside, places.file("around/both.json"))
    found = comparison(probed(both, asked=looked), now, repository=here)
    assert found.outside == (str(plan),)
