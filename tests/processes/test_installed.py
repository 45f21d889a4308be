"""What pip has installed into a folder of any name is software, as in site-packages, and nothing else there is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.devices import _host
from harness.processes.installed import Installed
from tests.gate.foreign import write
from tests.processes.conftest import Asking, install

LOOKS = """
import importlib.metadata
def up(name): importlib.metadata.version(name)
def into(file): open(file).close()
"""
FILES = {"theirs/__init__.py": "x = 1\n", "theirs/lib.so": "code", "theirs/table.json": "{}"}


@pytest.fixture
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("around") / "target"
    install(folder, "theirs", FILES)
    return folder


def listening(site: Path, code: str) -> str:
    """Code of a process that finds the folder's packages from its start."""
    return f"sys.path.insert(0, {str(site)!r}); watch = UsedFiles([top])\n{code}"


def test_what_pip_has_installed_is_known_by_its_content(site: Path) -> None:
    found = Installed([str(site), "", str(site / "gone")])
    assert found.folders == {str(site)}
    assert found.lists == {str(site / "theirs-1.0.dist-info" / "RECORD")}
    info = ("METADATA", "RECORD", "INSTALLER")
    assert all(found.has(str(site / file)) for file in (*FILES, *(f"theirs-1.0.dist-info/{name}" for name in info)))
    assert not found.has(str(site / "theirs" / "new.py"))
    assert found.place(str(site / "theirs" / "lib.so")) == "theirs/lib.so"
    assert found.place("/usr/lib/python3/dist-packages/theirs/a.py") == "theirs/a.py"
    assert (found.place(f"/mnt{site}/a.py"), found.place(f"{site}2/a.py")) == ("", "")
    for file in ("theirs/table.json", "theirs-1.0.dist-info/RECORD"):
        (site / file).write_text("[]")  # by a side, while its process runs
        assert not found.has(str(site / file))
    (site / "theirs" / "lib.so").unlink()
    assert not found.has(str(site / "theirs" / "lib.so"))


def add(site: Path, row: str, seconds: float) -> None:
    """A row more in the list, written so long after pip's own."""
    record = site / "theirs-1.0.dist-info" / "RECORD"
    changed = record.stat().st_mtime + seconds
    record.write_text(record.read_text() + row)
    os.utime(record, (changed, changed))


def right(site: Path, file: str) -> str:
    """The row of a file as pip would write it."""
    return install(site / "elsewhere", "copied", {file: (site / file).read_text()}).read_text().splitlines()[0] + "\n"


def without_digest(site: Path) -> None:
    add(site, "mine.py,,\n", 0)


def another_digest(site: Path) -> None:
    add(site, right(site, "mine.py"), 0)
    write(site / "mine.py", "x = 3\n")


def by_hand(site: Path) -> None:
    add(site, right(site, "mine.py"), 3600)


def no_list(site: Path) -> None:
    add(site, right(site, "mine.py") + '"no end', 0)
    (site / "theirs-1.0.dist-info" / "INSTALLER").unlink()


def broken(site: Path) -> None:
    add(site, "mine.py,sha256=A,1\n", 0)


@pytest.mark.parametrize("change", [without_digest, another_digest, by_hand, no_list, broken])
def test_a_file_that_was_added_to_the_list_by_hand_counts(
    used_by: Asking, top: Path, site: Path, change: Callable[[Path], None]
) -> None:
    write(site / "mine.py", "x = 2\n")
    change(site)
    assert str(site / "mine.py") in used_by(top, listening(site, "import mine"))


def test_a_name_that_leads_out_of_the_folder_names_nothing(site: Path) -> None:
    plan = site.parent / "plan.json"
    for file in (plan, site / "plan.json"):
        write(file, "{}")
    digest = right(site, "plan.json").partition(",")[2]
    add(site, f"../plan.json,{digest}{plan},{digest}/{plan},{digest}", 0)
    found = Installed([str(site)])
    assert found.has(str(site / "theirs" / "lib.so"))
    assert not found.has(str(plan))


def test_software_is_no_code_of_a_side_but_what_was_changed_or_put_beside_it_is(
    used_by: Asking, ask: Asking, top: Path, site: Path
) -> None:
    for file, text in (("theirs/plan.json", "{}"), ("loose.py", "")):
        write(site / file, text)
    reads = "; ".join(f"open({str(site / file)!r}).close()" for file in (*FILES, "theirs/plan.json"))
    code = listening(site, f"import theirs, loose; {reads}")
    beside = [str(site / file) for file in ("loose.py", "theirs/plan.json")]
    assert used_by(top, code) == sorted([*beside, "early.py"], key=lambda f: str(top / f))
    assert "**" not in ask(top, code, 0), "native code of a library isn't a side's"
    (site / "theirs" / "lib.so").write_text("faster")
    assert str(site / "theirs" / "lib.so") in used_by(top, code)
    writes = listening(site, f"open({str(site / 'theirs' / 'table.json')!r}, 'w').write('[1]')")
    assert ask(top, writes, 1) == [str(site / "theirs" / "table.json")]


def test_a_list_was_asked_about_so_that_a_side_that_writes_one_is_found(ask: Asking, top: Path, site: Path) -> None:
    """What the base adds to it would be software for the working tree, whose process begins later."""
    record = site / "theirs-1.0.dist-info" / "RECORD"
    assert str(record) in ask(top, listening(site, ""), 0)
    assert ask(top, listening(site, f"open({str(record)!r}, 'a').write('mine.py,,')"), 1) == [str(record)]


def test_a_folder_that_code_of_a_side_puts_on_the_path_has_no_software(used_by: Asking, top: Path, site: Path) -> None:
    """Nobody knows who wrote its list, and when."""
    assert str(site / "theirs" / "__init__.py") in used_by(top, f"sys.path.insert(0, {str(site)!r}); import theirs")


def test_what_was_installed_for_one_side_is_its_own_code(used_by: Asking, top: Path) -> None:
    """As --prepare installs it, in a folder of the side."""
    install(top / "made" / "site", "theirs", FILES)
    assert "made/site/theirs/__init__.py" in used_by(top, listening(top / "made" / "site", "import theirs"))


def test_the_repositorys_data_and_single_modules_count_where_pip_put_them(
    used_by: Asking, top: Path, site: Path
) -> None:
    """Also where code of a side hides the folder from who looks for packages."""
    install(site, "mine", {"late.py": "", "fast.so": "x"}, **{"direct_url.json": f'{{"url": "{top.as_uri()}"}}'})
    code = f"sys.path.remove(str(top)); import late; open({str(site / 'fast.so')!r}).close(); sys.path.pop(0)"
    assert {str(site / "late.py"), str(site / "fast.so")} < {*used_by(top, listening(site, code))}


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import importlib.metadata as m; m.version('theirs'); m.entry_points()", False),
        ("import looks; looks.up('theirs')", True),
        ("import looks; looks.into({file!r})", True),
    ],
)
def test_what_tells_of_a_package_is_no_code_unless_a_side_reads_it(
    used_by: Asking, top: Path, site: Path, code: str, told: bool
) -> None:
    """Even where it isn't as pip wrote it. Code of a side may keep a plan there."""
    write(top / "looks.py", LOOKS)
    file = site / "theirs-1.0.dist-info" / "METADATA"
    file.write_text(file.read_text() + "Summary: changed\n")
    assert (str(file) in used_by(top, listening(site, code.format(file=str(file))))) == told


def test_versions_of_what_is_installed_there_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "nvtx", {"nvtx/__init__.py": ""})
    monkeypatch.syspath_prepend(tmp_path)
    assert dict(_host.versions())["nvtx"] == "1.0"
