"""Which waivers the base doesn't have, and what is said where nobody knows that."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gate import new_waivers, waiver_file
from harness.gate.records import Revision
from harness.gate.worktree import Checkout, Repository
from tests.one_test import one_test

FILE = """\
waivers:
  - {{cases: {cases}, largest_loss: {loss}, reason: r, owner: {owner}, until: {until}}}
"""


def text(cases: str = "[prelu/*, copy/*]", loss: str = "3%", owner: str = "alice", until: str = "2026-12-31") -> str:
    return FILE.format(cases=cases, loss=loss, owner=owner, until=until)


def marked(
    tmp_path: Path, before: str | None, now: str = text(), name: str = "repository/waivers.yaml"
) -> tuple[list[bool | None], str]:
    """Whether each waiver of the working tree is new, and why that isn't known. before: the base's file."""
    for side in ("repository", "base"):
        (tmp_path / side).mkdir(exist_ok=True)
    file = tmp_path / name
    file.write_text(now)
    if before is not None:
        (tmp_path / "base" / "waivers.yaml").write_text(before)
    base = Checkout(Revision("main", "b" * 40, False, ""), None, (), tmp_path / "base")
    repository = Repository((tmp_path / "repository").resolve(), ())
    found, why = new_waivers.marked(waiver_file.load(file), file, repository, base)
    return [waiver.new for waiver in found], why


@one_test(
    ("before", "new"),
    [
        (None, True),
        ("waivers: []\n", True),
        (text(), False),
        (text(owner="bob"), False),
        (text(cases="[prelu/*, copy/*, softmax/*]", loss="4%", until="2027-01-01"), False),
        (text(cases="[prelu/*]"), True),
        (text(loss="2%"), True),
        (text(until="2026-12-30"), True),
    ],
)
def test_a_waiver_is_new_if_the_base_allows_less(tmp_path: Path, before: str | None, new: bool) -> None:
    (tmp_path / "base").mkdir(exist_ok=True)
    (tmp_path / "base" / "waivers.yaml").unlink(missing_ok=True)
    assert marked(tmp_path, before) == ([new], "")


def test_each_waiver_is_compared_with_all_of_the_base(tmp_path: Path) -> None:
    both = text(cases="softmax/*") + text().partition("\n")[2]
    assert marked(tmp_path, both, text() + text(cases="other/*").partition("\n")[2]) == ([False, True], "")


def test_a_file_of_the_base_that_cannot_be_read_is_told_and_nothing_is_called_new(tmp_path: Path) -> None:
    found, why = marked(tmp_path, "waivers: 3\n")
    assert found == [None]
    assert why.startswith(
        "main can't read its own file of waivers, so nobody knows which waivers are new: waivers.yaml:1"
    )


@pytest.mark.parametrize("linked", [False, True])
def test_of_a_file_outside_of_the_repository_nobody_knows_what_is_new(tmp_path: Path, linked: bool) -> None:
    name = "elsewhere.yaml"
    if linked:  # both sides have the link, and read the same file
        for side in ("repository", "base"):
            (tmp_path / side).mkdir()
            (tmp_path / side / "waivers.yaml").symlink_to(tmp_path / name)
        name = "repository/waivers.yaml"
    found, why = marked(tmp_path, None, name=name)
    assert found == [None]
    assert why == f"{tmp_path / name} lies outside of the repository, so nobody knows which of its waivers main lacks"
