"""What changed in the code that times both sides."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.gate import inquiry
from harness.gate.records import Revision, Side, UsedCode
from harness.gate.worktree import Checkout, Repository

CODE = Revision("main", "0" * 40, False, "d" * 64)


def written(folders: Mapping[Side, Path], *, base: tuple[str, ...] = (), now: tuple[str, ...] = ()) -> None:
    """Make empty files."""
    for file in (*(folders["base"] / name for name in base), *(folders["now"] / name for name in now)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


@pytest.fixture
def codes(tmp_path: Path) -> dict[Side, Checkout]:
    return {side: Checkout(CODE, None, (), tmp_path / side, tmp_path / f"made-{side}") for side in ("base", "now")}


@pytest.mark.parametrize(
    ("file", "changed", "told"),
    [
        ("now/dev/clock.py", "dev/clock.py", ["dev/clock.py"]),  # a module
        ("now/dev/clock.py", "dev/ops.py", []),
        ("now/src/clock/__init__.py", "src/clock/marks.py", ["src/clock/marks.py"]),  # a package
        ("now/src/clock/__init__.py", "src/clocks.py", []),
        ("made-now/site/clock/__init__.py", "{made}/site/clock/marks.py", ["{made}/site/clock/marks.py"]),  # prepared
        ("elsewhere/clock.py", "elsewhere/clock.py", []),  # somebody else's
        (None, "company/device.py", ["company/device.py"]),  # a module in a namespace
        (None, "company/ops.py", []),
    ],
)
def test_a_device_of_the_repository_that_changed_times_each_side_otherwise(
    codes: dict[Side, Checkout],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str | None,
    changed: str,
    told: list[str],
) -> None:
    """A clock that is a thousand times as fast makes every kernel fast."""
    module = ModuleType("clock")
    module.__file__ = str(tmp_path / file) if file else None
    if file is None or file.endswith("__init__.py"):
        module.__path__ = []
    inner = ModuleType("clock.device")
    inner.__file__ = str(tmp_path / "now/company/device.py")
    monkeypatch.setitem(sys.modules, "clock.device", inner)
    monkeypatch.setitem(sys.modules, "clock", module)
    device = type("Mine", (), {"__module__": "clock.device"})()
    monkeypatch.setattr(inquiry, "devices", SimpleNamespace(kinds=lambda: {"mine": device}))
    repository: Any = SimpleNamespace(package=None)
    same = (("dev/same.py", "1"), ("src/clock/same.py", "1"))
    for digest in ((), ((changed, "2"),)):  # gone in the base, or another one
        used = UsedCode((*same, *digest), (*same, (changed, "3")))
        sentence = inquiry._measuring(repository, codes, used, "mine")
        assert sentence == (f"the device 'mine', which times each side, changed: {told[0]}" if told else "")
    assert inquiry._measuring(repository, codes, UsedCode(same, same), "mine") == ""


def test_a_device_of_the_harness_is_told_as_the_code_that_measures(
    codes: dict[Side, Checkout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repository has ops too, which may change."""
    repository: Any = SimpleNamespace(package=Path())
    monkeypatch.setattr(sys.modules["harness"], "__file__", str(codes["now"].folder) + "/harness/__init__.py")
    op = "harness/collection/ops/a.py"
    assert inquiry._measuring(repository, codes, UsedCode(((op, "1"),), ((op, "2"),)), "cpu") == ""


def test_a_file_of_ops_that_the_base_lacks_is_named(codes: dict[Side, Checkout]) -> None:
    """Else a reader only sees that the base can't load its own scenario. A file outside is the same for both sides."""
    folders = {side: code.folder or Path() for side, code in codes.items()}
    now = replace(codes["now"], plugins=(*(folders["now"] / name for name in ("ops.py", "b/more.py")), Path("/o/a.py")))
    base = replace(codes["base"], plugins=(folders["base"] / "b/more.py", Path("/o/a.py")))
    [sentence] = inquiry._unplugged(base, now)
    new = "main has no ops.py, which --ops names now; "
    assert sentence == f"{new}if its ops are new, they are compared from the next change on"
    written(folders, base=("bench.py", "kept.py", "bench.yaml"), now=("kept.py", "ops.py"))
    [sentence] = inquiry._unplugged(base, now)
    assert sentence.startswith(f"{new}gone now: bench.py; if that was its name, rename the file in a commit of its own")


def test_a_scenario_that_the_base_lacks_is_named_with_what_it_may_have_been(codes: dict[Side, Checkout]) -> None:
    folders = {side: code.folder or Path() for side, code in codes.items()}
    repository = Repository(folders["now"].resolve(), ())

    def told() -> str:
        return inquiry._unheard(folders["now"] / "ci" / "twice.yaml", repository, codes["base"])

    written(folders, now=("ci/twice.yaml",))
    new = "main has no ci/twice.yaml, so nobody knows which cases and floors it should have; "
    assert told() == f"{new}if the scenario is new, it is compared from the next change on"
    written(folders, base=("ci/bench.yaml", "ci/bench.py", "other.yaml"))
    assert told().startswith(f"{new}gone now: ci/bench.yaml; if that was its name, rename the file in a commit of its")
    assert "or gate its folder" in told()
    written(folders, base=tuple(f"ci/{letter}.yaml" for letter in "cdef"))
    assert "gone now: ci/bench.yaml, ci/c.yaml, ci/d.yaml and 2 more; " in told()
