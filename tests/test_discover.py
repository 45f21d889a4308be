"""Plug-in folders: what lies there is found, and nothing is left out silently."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.discover import discover, entry_points
from harness.errors import UsageError
from tests.one_test import one_test

PLACES = {
    "harness.collection.ops": (["OP"], True),
    "harness.collection.steps": (["OP"], True),
    "harness.report.formats": (["SUMMARY", "write"], False),
    "harness.report.gate.formats": (["write"], False),
    "harness.gate.rules": (["judge"], False),
    "harness.devices": (["KIND"], False),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], str]:
    """package({file: text}) writes a package and gives its name, another one each time."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> str:
        name = f"place_{len(list(tmp_path.iterdir()))}_{tmp_path.name}"
        for file, text in {"__init__.py": "", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return name

    return write


@one_test("place", PLACES)
def test_every_place_has_something_and_all_of_it_offers_what_it_must(place: str) -> None:
    offers, nested = PLACES[place]
    found = discover(place, offers, nested)
    assert found
    assert list(found) == sorted(found)


def test_helpers_are_left_out(package: Callable[[dict[str, str]], str]) -> None:
    found = discover(package({"b.py": "OP = 2", "a.py": "OP = 1", "_helper.py": "x = 1"}), ["OP"])
    assert {name: module.OP for name, module in found.items()} == {"a": 1, "b": 2}


def test_families_are_searched_and_their_helpers_left_out(package: Callable[[dict[str, str]], str]) -> None:
    files = {"top.py": "", "one/__init__.py": "", "one/a.py": "OP = 1", "one/_shared.py": "", "_own/b.py": "OP = 2"}
    assert list(discover(package(files), ["OP"], nested=True)) == ["a"]


def test_a_file_that_calls_sys_exit_is_an_error_that_names_it(package: Callable[[dict[str, str]], str]) -> None:
    name = package({"good.py": "OP = 1", "leaving.py": "import sys\nsys.exit(0)"})
    with pytest.raises(UsageError, match=rf"{name}\.leaving: SystemExit: 0 \(.*leaving\.py:2") as caught:
        discover(name, ["OP"])
    assert "sys.exit" in caught.value.advice


def test_a_file_that_lacks_what_it_must_offer_is_an_error(package: Callable[[dict[str, str]], str]) -> None:
    name = package({"good.py": "write = SUMMARY = 1", "bad.py": "x = 1"})
    with pytest.raises(UsageError, match=rf"bad\.py: defines no SUMMARY and no write, .* {name} must have") as caught:
        discover(name, ["SUMMARY", "write"])
    assert "'_'" in caught.value.advice


def test_two_files_of_one_name_are_an_error(package: Callable[[dict[str, str]], str]) -> None:
    files = {f"{family}/{file}": "OP = 1" for family in ("one", "two") for file in ("__init__.py", "same.py")}
    with pytest.raises(
        UsageError, match=rf"two{re.escape('/')}same\.py: has the name of .*one{re.escape('/')}same\.py"
    ):
        discover(package(files), ["OP"], nested=True)


def test_an_entry_point_is_found_when_its_package_is_installed_and_not_after_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[str]:
        return [entry.name for entry in entry_points("harness.devices") if entry.value == "late_device"]

    monkeypatch.syspath_prepend(tmp_path)
    assert found() == []
    information = tmp_path / "late-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: late\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[harness.devices]\nlate = late_device\n")
    assert found() == ["late"]
    shutil.rmtree(information)
    assert found() == []
