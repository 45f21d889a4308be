"""A revision beside the working tree, and nothing left of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness import source
from harness.errors import MachineError, UsageError
from harness.gate.git import git as ask_git
from harness.gate.worktree import Repository

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a harness, and a plug-in of a second commit."""
    root = tmp_path_factory.mktemp("first") / "checkout"
    (root / "harness" / "processes").mkdir(parents=True)
    for name in ("__init__", "source", "processes/child"):
        (root / "harness" / f"{name}.py").write_text("first = 1\n")
    git(root.parent, "init", "--quiet", "--initial-branch=main", str(root))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    git(root, "tag", "one")
    (root / "harness" / "processes" / "child.py").write_text("second = 2\n")
    (root / "mine.py").write_text("OP = 2\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=second")
    return root


@pytest.fixture
def top(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in place of the harness that runs."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    root = Path(shutil.copytree(checkout, tmp_path / "checkout"))
    monkeypatch.setattr(source, "__file__", str(root / "harness" / "source.py"))
    return root


@pytest.fixture
def a_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """a_git(script): a program of the shell that runs in place of git."""

    def make(script: str) -> None:
        file = tmp_path / "bin" / "git"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def test_a_git_that_hangs_is_told(a_git: Callable[[str], None], tmp_path: Path) -> None:
    a_git("exec sleep 1000")
    with pytest.raises(MachineError, match=r"git fetch took longer than 0\.01 s"):
        ask_git(tmp_path, "fetch", limit=0.01)


def test_git_runs_in_a_session_of_its_own_without_what_a_hook_has_set(
    a_git: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C would end the removal of a worktree, and a hook's variables would name another repository."""
    names = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
    for name in names:
        monkeypatch.setenv(name, "1")
    a_git("cut -d' ' -f6 /proc/$$/stat; env; echo $@")
    session, *told = ask_git(tmp_path, "status").splitlines()
    assert int(session) != os.getsid(0)
    assert not any(line.startswith(f"{name}=") for line in told for name in names)
    assert {"GIT_TERMINAL_PROMPT=0", "LC_ALL=C"} <= {*told}
    assert told[-1] == f"-C {tmp_path} -c core.hooksPath=/dev/null status"


def listed(top: Path) -> int:
    return git(top, "worktree", "list").count("\n")


def test_a_revision_lies_in_a_folder_of_its_own_until_it_is_done_with(top: Path) -> None:
    repository = Repository.find([])
    with repository.worktree("one", "base") as base:
        assert (base.root / "harness" / "processes" / "child.py").read_text() == "first = 1\n"
        assert base.code.label == "one"
        assert base.code.revision == git(top, "rev-parse", "one").strip()
        assert base.code.label == "one"
        assert base.code.digest != repository.working_tree().code.digest
        assert listed(top) == 2
    assert not base.root.exists()
    assert listed(top) == 1
    with repository.worktree("main", "base") as again:
        # Compiled kernels are kept by path and content.
        assert again.root == base.root
        assert again.code.digest == repository.working_tree().code.digest


def test_each_commit_of_another_s_repository_lies_in_a_folder_of_its_own(tmp_path: Path, top: Path) -> None:
    """Its code may keep plans by its own path, and must not find those of an earlier base."""
    (tmp_path / "theirs").mkdir()
    git(tmp_path / "theirs", "init", "--quiet")
    places: list[list[Path | None]] = []
    for text in ("1", "2"):
        write(tmp_path / "theirs" / "mine.py", text)
        git(tmp_path / "theirs", "add", ".")
        git(tmp_path / "theirs", "commit", "--quiet", f"--message={text}")
    repository = Repository.find([tmp_path / "theirs" / "mine.py"])
    for revision in ("HEAD~1", "HEAD", "HEAD~1"):
        with repository.worktree(revision, "base") as base:
            places.append([base.folder, base.home])
    assert places[0] == places[2]
    assert {*places[0]}.isdisjoint(places[1])
    assert not [place for place in (tmp_path / "cache" / "worktrees").glob("*/*") if place.is_dir()]


def test_it_is_gone_after_an_error_and_what_a_killed_gate_left_is_replaced(top: Path) -> None:
    repository = Repository.find([])
    with pytest.raises(KeyboardInterrupt), repository.worktree("one", "base") as base:
        raise KeyboardInterrupt
    assert not base.root.exists()
    git(top, "worktree", "add", "--quiet", "--detach", str(base.root), "main")
    (base.root / "harness" / "__pycache__").mkdir()
    with repository.worktree("one", "base") as next_one:
        assert next_one.root == base.root
        assert (next_one.root / "harness" / "processes" / "child.py").read_text() == "first = 1\n"
        assert not (next_one.root / "harness" / "__pycache__").exists()
    assert listed(top) == 1


def test_two_gates_at_a_time_have_two_folders(top: Path) -> None:
    repository = Repository.find([])
    with repository.worktree("one", "base") as first, repository.worktree("main", "base") as second:
        assert first.root != second.root
        assert (first.root / "harness" / "processes" / "child.py").read_text() == "first = 1\n"
    assert listed(top) == 1


def test_the_working_tree_is_as_it_lies_there(top: Path) -> None:
    repository = Repository.find([])
    assert repository.working_tree().code.dirty is False
    (top / "notes.txt").write_text("no code\n")
    assert repository.working_tree().code.dirty is False
    (top / "harness" / "new.py").write_text("an op that isn't committed\n")
    now = repository.working_tree()
    assert (now.root, now.code.dirty) == (top, True)
    assert now.code.revision == git(top, "rev-parse", "HEAD").strip()


def test_a_plugin_of_the_repository_has_a_past_too(top: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "theirs.py"
    elsewhere.write_text("OP = 3\n")
    repository = Repository.find([top / "mine.py", elsewhere])
    with repository.worktree("main", "base") as base:
        assert base.plugins == (base.root / "mine.py", elsewhere)
    with repository.worktree("one", "base") as older:
        assert older.plugins == (elsewhere,)


def test_a_link_in_the_repository_leads_where_each_side_has_it(top: Path, tmp_path: Path) -> None:
    """Otherwise a link to slower code would be compared with the slower code of the base, which nothing uses there."""
    for version in ("v1", "v2"):
        write(top / version / "op.py", version)
    (top / "current").symlink_to("v1")
    (top / "link.py").symlink_to("v1/op.py")
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message=links")
    for link, target in (("current", "v2"), ("link.py", "v2/op.py")):
        (top / link).unlink()
        (top / link).symlink_to(target)
    (tmp_path / "way").symlink_to(top)
    plugins = [top / "link.py", tmp_path / "way" / "current" / "op.py"]
    with Repository.find(plugins).worktree("HEAD", "base") as base:
        assert [plugin.read_text() for plugin in plugins] == ["v2", "v2"]
        assert [plugin.read_text() for plugin in base.plugins] == ["v1", "v1"]


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
def theirs(top: Path, tmp_path: Path) -> Path:
    """Another repository than the harness's: a user's, with a plug-in, a package and scenarios, of two commits."""
    root = tmp_path / "theirs"
    for name in ("mine.py", "src/mykern/__init__.py", "scenarios/a.yaml", "scenarios/b.yaml", "alone.yaml"):
        write(root / name, "first")
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk", str(root))
    write(root / ".gitignore", "*.so\n/out/\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message=first")
    git(root, "tag", "early")
    (root / "scenarios" / "b.yaml").unlink()
    write(root / "scenarios" / "c.yaml", "second")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=second")
    return root


def test_the_base_is_a_revision_of_the_repository_of_ops_and_scenarios(top: Path, theirs: Path, tmp_path: Path) -> None:
    """The harness was installed from a repository too, with 'pip install -e', which knows other revisions."""
    outside = write(tmp_path / "lone.yaml")
    untracked = write(theirs / "new.py", "OP = 4\n")
    for plugins, scenarios in (
        ([theirs / "mine.py"], []),
        ([theirs / "mine.py"], [outside]),
        ([theirs / "mine.py"], [top / "mine.py"]),
        ([], [theirs / "alone.yaml"]),
        ([untracked], []),
    ):
        repository = Repository.find(plugins, scenarios)
        assert (repository.top, repository.package) == (theirs, None)
    with repository.worktree("early", "base") as base:
        assert (base.code.repository, base.root, base.plugins) == (str(theirs), None, ())
    assert repository.working_tree().code.repository == str(theirs)
    alone = Repository.find([], [outside])
    assert alone.top == top
    with pytest.raises(UsageError, match=f"{outside} lies in no git repository, and that of the harness, {top}"):
        alone.commit("early")
    with pytest.raises(UsageError, match=f"{theirs}: git knows no revision 'one'"), repository.worktree("one", "base"):
        pass


def test_bundled_scenarios_are_the_harness_s(top: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they were installed, in a virtual environment that lies in a user's repository."""
    bundled = theirs / "venv" / "harness" / "_data" / "scenarios"
    monkeypatch.setattr("harness.paths.data", lambda name: bundled.parent / name)
    assert Repository.find([], [write(bundled / "ci.yaml")]).top == top


def test_the_base_has_its_own_scenarios(theirs: Path, tmp_path: Path) -> None:
    outside = write(tmp_path / "lone.yaml")
    folder = theirs / "scenarios"
    files = [folder / "a.yaml", folder / "c.yaml", theirs / "alone.yaml", write(theirs / "new.yaml"), outside]
    repository = Repository.find([theirs / "mine.py"], files)
    with repository.worktree("early", "base") as base:
        old = repository.old(base, files, [folder])
        moved = ("scenarios/a.yaml", "alone.yaml")
        assert old == (*(base.folder / name for name in moved), outside, base.folder / "scenarios" / "b.yaml")
        assert repository.new(base, files, [folder]) == (theirs / "new.yaml",)
        assert repository.new(base, files, []) == (folder / "c.yaml", theirs / "new.yaml")


def test_an_installed_harness_compares_the_repository_of_the_plugins(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "__file__", str(tmp_path / "site-packages" / "harness" / "source.py"))
    (tmp_path / "site-packages" / "harness").mkdir(parents=True)
    repository = Repository.find([top / "mine.py"])
    with repository.worktree("main", "base") as base:
        assert base.root is None
        assert base.plugins[0].read_text() == "OP = 2\n"
    with pytest.raises(UsageError, match="needs a git checkout") as caught:
        Repository.find([])
    assert "harness gate REF RUN" in caught.value.advice


@pytest.mark.parametrize("rev", ["nowhere", "--help", "0" * 40, ""])
def test_an_unknown_revision_is_named_with_what_to_do(top: Path, rev: str) -> None:
    with (
        pytest.raises(UsageError, match=f"git knows no revision '{rev}'") as caught,
        Repository.find([]).worktree(rev, "base"),
    ):
        pass
    assert "fetch-depth: 0" in caught.value.advice


def test_a_branch_that_only_the_remote_has_is_suggested(top: Path) -> None:
    """As in a job of CI, whose clone has no branch of its own but the one that it was made for."""
    git(top, "update-ref", "refs/remotes/origin/release/2", "main")
    for rev, near in (
        ("release/2", "did you mean 'origin/release/2'?"),
        ("release", "harness gate ci --target"),
    ):
        with pytest.raises(UsageError, match="git knows no revision") as caught:
            Repository.find([]).commit(rev)
        assert near in caught.value.advice


def test_a_revision_without_a_harness_is_refused(top: Path) -> None:
    git(top, "rm", "--quiet", "harness/processes/child.py")
    git(top, "commit", "--quiet", "--message=none")
    with pytest.raises(UsageError, match="'main' has no harness"), Repository.find([]).worktree("main", "base"):
        pass
    assert listed(top) == 1


def test_a_revision_before_0_2_0_is_refused_with_what_to_do_instead(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ops lay in harness/ops, and the installed entry points name harness/collection/ops."""
    (top / "harness" / "collection" / "ops").mkdir(parents=True)
    (top / "harness" / "collection" / "ops" / "__init__.py").touch()
    git(top, "add", ".")
    git(top, "commit", "--quiet", "--message=as it is now")
    monkeypatch.setattr(harness, "__file__", str(top / "harness" / "__init__.py"))
    with Repository.find([]).worktree("main", "base") as base:
        assert (base.root / "harness" / "collection").is_dir()
    with (
        pytest.raises(UsageError, match=r"'one' has no harness/collection/ops, .* before harness 0\.2\.0") as caught,
        Repository.find([]).worktree("one", "base"),
    ):
        pass
    assert "harness gate REF RUN" in caught.value.advice
    assert listed(top) == 1


def test_hooks_of_the_user_do_not_run_and_a_hook_may_run_the_gate(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = top / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\nexit 1\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    with Repository.find([]).worktree("one", "base") as base:
        assert not (base.root / "hooked").exists()


def test_without_git_it_says_so(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(top))
    with pytest.raises(MachineError, match="git isn't installed"):
        Repository.find([])


def test_a_cache_that_others_can_write_gets_no_code(top: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The base's code is executed there."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("HARNESS_CACHE", str(shared))
    refused = pytest.raises(MachineError, match=r"the cache folder isn't used: .*shared can be written by other users")
    with refused, Repository.find([]).worktree("one", "base"):
        pass
    assert list(shared.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", "/dev/null/cache")
    with pytest.raises(MachineError, match="can't be written") as caught, Repository.find([]).worktree("one", "base"):
        pass
    assert "HARNESS_CACHE" in caught.value.advice


def test_a_checkout_of_another_user_is_told_in_the_words_of_git(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UsageError, match=r"safe\.directory"):
        Repository.find([])


def test_a_commit_that_is_named_in_full_is_shown_short(top: Path) -> None:
    """A job of CI names it so; forty digits in each line say no more than twelve."""
    commit = git(top, "rev-parse", "one").strip()
    with Repository.find([]).worktree(commit, "base") as base:
        assert (base.code.label, base.code.revision) == (commit[:12], commit)
