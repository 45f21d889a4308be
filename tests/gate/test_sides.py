"""What each side has for itself: submodules, packages, folders, and the harness that measures both."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness import source
from harness.errors import UsageError
from harness.gate import measuring, sides, submodules, used_code
from harness.gate.git import shown
from harness.gate.opened import Opened
from harness.gate.preparing import prepared
from harness.gate.records import Revision, UsedCode
from harness.gate.sides import two_sides
from harness.gate.worktree import Checkout, Repository
from harness.processes.installed import digest
from harness.processes.surroundings import Surroundings
from tests.gate.foreign import git, write
from tests.rare import rare

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
CODE = Revision("main", "0" * 40, False, "d" * 64)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a submodule that has a submodule, of two commits each; the tag `one` has the first ones."""
    folder = tmp_path_factory.mktemp("repositories")
    inner, outer, root = (folder / name for name in ("inner", "outer", "root"))
    for repository in (inner, outer, root):
        repository.mkdir()
        git(repository, "init", "--quiet", "--initial-branch=main")
        write(repository / "a.py", "first")
        if repository is not inner:
            git(repository, "submodule", "add", "--quiet", str(inner if repository is outer else outer), "sub")
            git(repository, "submodule", "update", "--quiet", "--init", "--recursive")
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "--message=first")
    git(root, "tag", "one")
    for place in (root / "sub" / "sub", root / "sub", root):
        write(place / "a.py", "second")
        git(place, "commit", "--quiet", "--all", "--message=second")
    return root


@pytest.fixture
def top(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change, beside another repository."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    shutil.copytree(original.parent / "inner", tmp_path / "more")
    return Path(shutil.copytree(original, tmp_path / "root"))


def test_submodules_have_the_commits_of_the_base(top: Path) -> None:
    with Repository(top, ()).worktree("one", "base") as base:
        assert base.folder
        for place in ("a.py", "sub/a.py", "sub/sub/a.py"):
            assert ((base.folder / place).read_text(), (top / place).read_text()) == ("first", "second")
    assert set(submodules.listed(top)) >= {"a.py", "sub/a.py", "sub/sub/a.py"}
    assert {"a.py", "sub/a.py", "sub/sub/a.py"} <= set(submodules.changed(top, "one"))


def test_submodules_of_a_clone_that_was_cut_short_have_the_commits_of_the_base(top: Path) -> None:
    """CI jobs have short clones. No branch of the submodule names the commit that the job fetched."""
    short = top.parent / "short"
    git(top.parent, "clone", "--quiet", "--depth=2", "--no-single-branch", f"file://{top}", str(short))
    assert (submodules.absent(short), submodules.absent(top)) == (["sub"], [])
    assert (submodules.here(short), submodules.here(top)) == ([], [top / "sub", top / "sub" / "sub"])
    first = submodules.at(short, "one")["sub"]
    git(short, "clone", "--quiet", "--depth=1", f"file://{top / 'sub'}", "sub")
    git(short / "sub", "fetch", "--quiet", "--depth=1", "origin", first)
    with Repository(short, ()).worktree("one", "base") as base:
        assert base.folder
        assert ((base.folder / "sub" / "a.py").read_text(), (short / "sub" / "a.py").read_text()) == ("first", "second")
    assert submodules.absent(short) == ["sub/sub"]


@pytest.mark.slow  # the tests above have submodules
def test_submodules_that_are_gone_or_not_checked_out_are_filled_as_far_as_they_are_here(top: Path) -> None:
    """The first one isn't checked out. The second one is gone now; git keeps its repository."""
    for name in ("a_first", "deep/a\ttab"):
        git(top, "submodule", "add", "--quiet", str(top.parent / "more"), name)
    git(top, "commit", "--quiet", "--message=more")
    assert {"a_first", "deep/a\ttab"} < submodules.at(top, "HEAD").keys()
    assert top / "deep/a\ttab" in submodules.here(top)
    git(top, "tag", "several")
    git(top, "rm", "--quiet", "sub")
    git(top, "commit", "--quiet", "--message=gone")
    git(top, "submodule", "deinit", "--quiet", "--force", "a_first")
    shutil.rmtree(top / ".git" / "modules" / "a_first")
    with Repository(top, ()).worktree("several", "base") as base:
        assert base.folder
        assert (base.folder / "sub" / "a.py").read_text() == "second"
        # A filter of files, such as git-lfs, fetches what is missing from there.
        origin = git(base.folder / "sub", "remote", "get-url", "origin").strip()
        assert origin == str(top / ".git" / "modules" / "sub")
        assert not [*(base.folder / "a_first").iterdir()]


def test_files_are_listed_as_git_sees_them_in_submodules_too(top: Path) -> None:
    """New files too. A file that has another name now has changed under both names."""
    for place in (top, top / "sub"):
        write(place / ".gitignore", "/build/\n/x.log\n")
        for name in ("build/deep/k.so", "x.log", "new.py"):
            write(place / name, "")
        git(place, "mv", "a.py", "b.py")
    known = {*submodules.listed(top)}
    assert {"b.py", "new.py", "sub/b.py", "sub/new.py"} <= known
    assert not known & {".", "build/deep/k.so", "sub/x.log"}
    assert {*submodules.ignored(top)} == {top / "build", top / "sub" / "build"}
    wanted = {f"{place}{name}" for place in ("", "sub/") for name in ("a.py", "b.py", "new.py", ".gitignore")}
    write(top / ".gitignore", "/build/\n/x.log\n")
    write(top / "__pycache__" / "b.pyc", "")  # which a repository may have forgotten to ignore
    changed = {*submodules.changed(top, "HEAD")}
    assert wanted <= changed
    assert not changed & {"x.log", "build/deep/k.so", "sub/x.log", "__pycache__/b.pyc"}


def test_a_commit_is_here_or_not(top: Path) -> None:
    assert submodules._has(top, "HEAD")
    assert not submodules._has(top, "f" * 40)


@pytest.mark.slow  # test_files_are_listed_as_git_sees_them_in_submodules_too has names
def test_a_name_that_is_no_utf_8_is_as_good_as_any(top: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.txt")
    write(top / odd, "")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message=an odd name")
    with Repository(top, ()).worktree("HEAD", "base") as base:
        assert base.folder
        assert (base.folder / odd).is_file()
    assert odd in set(submodules.listed(top))
    assert [shown(name) for name in submodules.changed(top, "HEAD~1")] == ["caf\ufffd.txt"]


@pytest.mark.slow  # test_what_was_made_for_a_side_and_what_git_ignores_is_watched
def test_a_cache_in_the_repository_is_no_change_of_it(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of a worktree, such as base.lock, would count as a lock file of software."""
    monkeypatch.setenv("HARNESS_CACHE", str(top / ".cache"))
    write(top / "new.py", "")
    with Repository(top, ()).worktree("HEAD", "base"):
        assert list(submodules.changed(top, "HEAD")) == ["new.py"]


def test_a_submodule_without_the_commit_is_named_with_what_to_do(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submodules, "_has", lambda folder, commit: False)
    with pytest.raises(UsageError, match="the submodule sub doesn't have the commit") as caught:
        submodules.fill(top, top.parent / "base", "one")
    assert "fetch" in caught.value.advice


def test_what_the_environment_names_in_the_repository_is_moved_where_the_base_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, base = tmp_path / "now", tmp_path / "base"
    for folder in (now / "src", now / "venv", base / "src"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(now / "src")
    around = Surroundings(moved=((now, base),), variables=(("MORE", "1"),))
    assert around.working_folder() == str(base / "src")
    flags = f"-I{now}/src -L'{now}/venv' --of={now},1 {now}2 -O2"
    assert around.applied({"CFLAGS": flags})["CFLAGS"] == f"-I{base}/src -L'{now}/venv' --of={base},1 {now}2 -O2"
    imports = {"HARNESS_IMPORTS": f'{{"refused": "{now}/src"}}'}
    assert around.applied(imports)["HARNESS_IMPORTS"] == imports["HARNESS_IMPORTS"]
    given = {"CPATH": f"{now}/src:{now}/venv:/usr/include:src", "URL": "http://a/b"}
    applied = around.applied(given)
    assert applied["CPATH"] == f"{base}/src:{now}/venv:/usr/include:src"
    assert (applied["URL"], applied["MORE"]) == ("http://a/b", "1")
    plain = Surroundings()
    assert plain.working_folder() is None
    sizes = {sum(len(k) + len(v) + 2 for k, v in side.applied(given).items()) for side in (around, plain)}
    assert len(sizes) == 1


@pytest.fixture
def side(tmp_path: Path) -> Checkout:
    for name in ("code", "made"):
        (tmp_path / name).mkdir()
    return Checkout(CODE, None, (), tmp_path / "code", tmp_path / "made")


def test_a_side_is_prepared_in_its_folders(side: Checkout) -> None:
    command = "python -c \"import sys; open(sys.argv[1] + '/a.py', 'w').write(sys.argv[2])\" {site} '{root} x'"
    made = prepared(side, [command])
    assert made.around.site
    assert (made.around.site / "a.py").read_text() == f"{side.folder} x"
    assert prepared(side, []) is side


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python -c 'print(7); raise SystemExit(3)'", r"--prepare failed for main with exit status 3.*\n7"),
        ("no-such-program {site}", "--prepare can't be run for main"),
        ("pip 'install", "No closing quotation"),
        (" ", "names no command"),
        ("make && true", "isn't given to a shell, for which '&&' is meant"),
        ("cd {root}", "isn't given to a shell"),
        *(
            (f"{installs} install -e {{root}}", "both sides would have what is installed last")
            for installs in ("pip", "pip3.11", "python -m pip", "python3 -m pip", "uv pip")
        ),
    ],
)
def test_a_command_that_fails_is_told_with_what_it_said(side: Checkout, command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        prepared(side, [command])


def test_one_instrument_measures_both_collections(tmp_path: Path, side: Checkout) -> None:
    base, now = tmp_path / "base", tmp_path / "now"
    for root, text in ((base, "old = 1\n"), (now, "new = 1\n")):
        for name in ("__init__.py", "measure.py", "collection/ops/a.py", "nn.py"):
            write(root / "harness" / name, text)
        write(root / "kernels" / "a.cu", text)
    own = Checkout(CODE, base, (), base, side.home)
    made = measuring.with_instrument(own, now)
    assert made.root
    assert made.own_root == base
    texts = {str(file.relative_to(made.root)): file.read_text() for file in made.root.rglob("*.*") if file.is_file()}
    assert texts.pop("harness/__init__.py") == texts.pop("harness/measure.py") == "new = 1\n"
    assert set(texts.values()) == {"old = 1\n"}
    used = {"harness/measure.py": "d", "harness/collection/ops/a.py": "d"}
    assert measuring.changed(base, now, used, Path()) == ["harness/measure.py"]
    for name in ("__init__.py", "measure.py"):
        write(base / "harness" / name, "new = 1  # as the other one says it\n")
    assert measuring.with_instrument(own, now) is own


def test_files_that_any_process_opens_are_noted(tmp_path: Path) -> None:
    write(tmp_path / "a.h", "")
    write(tmp_path / "b.h", "")
    write(tmp_path / "sub" / "c.h", "")
    with Opened([tmp_path]) as opened:
        for name in ("a.h", "sub/c.h"):
            (tmp_path / name).read_text()
        assert opened.so_far() == ({tmp_path / "a.h"} if opened.complete else frozenset())
    with Opened([tmp_path / "gone"]) as nothing:
        assert not nothing.complete


def test_what_was_made_for_a_side_and_what_git_ignores_is_watched(top: Path, side: Checkout) -> None:
    """Also modules that Python has kept compiled, as a process that an op starts reads them. Other software isn't."""
    assert side.home
    write(top / ".gitignore", "build/\n/venv/\n__pycache__/\n")
    compiled = importlib.util.cache_from_source("pkg/c.py")
    watched = ("build/include/a.h", "build/libk.so.1", "build/log.txt", "venv/lib/b.py", compiled)
    for name in (*watched, "venv/pyvenv.cfg", "pkg/c.py"):
        write(top / name, "")
    module = side.home / "site" / "mykern" / "worker.py"
    write(module, "")
    kept = Path(importlib.util.cache_from_source(module))
    write(kept, "")
    with used_code.watched(Repository(top, ()), [replace(side, folder=None)]) as opened:
        for file in (*(top / name for name in (*watched, "a.py", "sub/a.py")), kept):
            file.read_text()
        found = opened.so_far()
    assert opened.complete
    names = ("a.py", "sub/a.py", "build/include/a.h", "build/libk.so.1", "pkg/c.py")
    assert found == {*(top / name for name in names), module}


@pytest.mark.slow  # test_two_codes.py has files edited meanwhile
def test_files_that_somebody_has_edited_meanwhile_are_told(top: Path) -> None:
    """Only files of the working tree count. A side may write what was made for it, and what lies elsewhere."""
    with Repository(top, ()).here() as now:
        files = [(name, digest(top / name)) for name in ("a.py", "sub/a.py")]
        used = UsedCode(now=(*files, ("{made}/site/b.py", "1"), ("/elsewhere/c.so", "2"), (".git/HEAD", "3")))
        assert used_code.edited(now, used) == ()
        write(top / "sub" / "a.py", "third")
        assert used_code.edited(now, used) == ("sub/a.py",)


class Quiet:
    """An observer. notes: what takes time."""

    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a harness in place of the one that runs; the version 1.0 has another measuring code."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "own"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    for version in ("1.0", "2.0"):
        for name in ("__init__", "source", "measure", "processes/child", "collection/a"):
            write(root / "harness" / f"{name}.py", f"version = {version}\n")
        git(root, "add", ".")
        git(root, "commit", "--quiet", f"--message={version}")
        git(root, "tag", f"v{version}")
    monkeypatch.setattr(source, "__file__", str(root / "harness" / "source.py"))
    return root


def versions(code: Checkout) -> tuple[str, str]:
    """The two parts: the instrument that measures a side, and the collection that is measured."""
    assert code.root
    texts = [(code.root / "harness" / name).read_text() for name in ("measure.py", "collection/a.py")]
    return texts[0].split()[-1], texts[1].split()[-1]


@pytest.mark.parametrize(("asked", "measured"), [(None, "2.0"), ("1.0", "1.0"), rare("v2.0", "2.0")])
def test_both_sides_are_measured_by_the_working_tree_or_by_the_version_asked_for(
    asked: str | None, measured: str, own: Path
) -> None:
    with two_sides(Repository.find(()), "v1.0", (), asked, Quiet()) as codes:
        assert {side: versions(code) for side, code in codes.items()} == {
            "base": (measured, "1.0"),
            "now": (measured, "2.0"),
        }
    assert git(own, "worktree", "list").count("\n") == 1
    assert not [*(own.parent / "cache" / "worktrees").glob("*/*/")]


@pytest.mark.slow  # test_a_side_is_prepared_in_its_folders has one side
def test_each_side_is_prepared_and_that_is_told(top: Path) -> None:
    write(top / "mine.py", "OP = 1")
    repository = Repository.find((top / "mine.py",))
    quiet, busy = Quiet(), Quiet()
    with two_sides(repository, "one", (), None, quiet) as codes:
        assert {code.around.site for code in codes.values()} == {None}
    command = "python -c \"import sys; open(sys.argv[1] + '/a.py', 'w').write(sys.argv[2])\" {site} {root}"
    with two_sides(repository, "one", (command,), None, busy) as codes:
        made = {side: code.around.site and (code.around.site / "a.py").read_text() for side, code in codes.items()}
        assert made == {side: str(code.folder) for side, code in codes.items()}
    assert (quiet.notes, busy.notes) == ([], ["preparing one", "preparing the working tree"])


def test_an_installed_harness_has_one_version(own: Path, top: Path) -> None:
    write(top / "mine.py", "OP = 1")
    with (
        pytest.raises(UsageError, match=r"--harness 1\.0: the harness isn't part of"),
        two_sides(Repository.find((top / "mine.py",)), "one", (), "1.0", Quiet()),
    ):
        pass


def test_this_process_sees_the_packages_of_the_working_tree_and_the_base_its_own() -> None:
    places = {"base": Path("/base/site"), "now": Path("/now/site")}
    codes = {side: Checkout(CODE, None, (), around=Surroundings(site=place)) for side, place in places.items()}
    with sides._seen(codes) as seen:
        assert sys.path[0] == "/now/site"
        assert seen["base"].around.moved == ((places["now"], places["base"]),)
        assert seen["now"] is codes["now"]
    assert "/now/site" not in sys.path
    for side in codes:
        bare = {**codes, side: Checkout(CODE, None, ())}
        with sides._seen(bare) as seen:
            assert seen is bare
            assert "/now/site" not in sys.path


def test_a_version_that_is_no_revision_is_refused(own: Path) -> None:
    with pytest.raises(UsageError, match=r"v9\.9"):
        sides._version(Repository.find(()), "9.9")
