"""What `harness gate ci` compares with: events of GitHub, and clones that were cut short."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.gate import ci
from harness.gate.git import git as git_of_harness
from tests.gate.foreign import git, passes, write

Clone = Callable[..., Path]


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose branch `change` begins at the tag `fork`; `main` went on since; `merge` merges both."""
    root = tmp_path_factory.mktemp("origin")
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    for number in range(5):
        commit(root, f"old-{number}")
    git(root, "tag", "fork")
    git(root, "switch", "--quiet", "--create=change")
    commit(root, "change")
    git(root, "switch", "--quiet", "main")
    commit(root, "later")
    git(root, "switch", "--quiet", "--create=merge")
    git(root, "merge", "--quiet", "--no-ff", "--message=merge", "change")
    return root


def commit(root: Path, name: str) -> None:
    write(root / f"{name}.py", f"NAME = '{name}'\n")
    git(root, "add", ".")
    git(root, "commit", "--quiet", f"--message={name}")


def of(root: Path, revision: str) -> str:
    return git(root, "rev-parse", revision).strip()


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Clone:
    """Clones as actions/checkout does: one commit, without branches, unless told otherwise."""

    def make(revision: str, *, depth: int | None = 1) -> Path:
        root = tmp_path / "clone"
        git(tmp_path, "init", "--quiet", str(root))
        git(root, "remote", "add", "origin", f"file://{origin}")
        short = [f"--depth={depth}"] if depth else []
        git(root, "fetch", "--quiet", "--no-tags", *short, "origin", of(origin, revision))
        git(root, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        return root

    return make


def request(origin: Path) -> ci.Event:
    return ci.Event("main", of(origin, "main"), of(origin, "change"))


def test_a_merge_that_github_made_is_compared_with_what_it_merges_into(origin: Path, clone: Clone) -> None:
    """Whatever the event says of the target branch, which may have gone on since."""
    root = clone("merge")
    assert ci.base(root, ci.Event("main", of(origin, "fork"), of(origin, "change"))) == of(origin, "main")
    assert git(root, "show", "--name-only", "--format=", of(origin, "main")).split()  # it was fetched


def test_the_head_of_a_pull_request_is_compared_with_the_merge_base(origin: Path, clone: Clone) -> None:
    """So what others have merged since isn't taken for a part of the change."""
    assert ci.base(clone("change"), request(origin)) == of(origin, "fork")


def test_a_target_branch_alone_is_enough(origin: Path, clone: Clone) -> None:
    assert ci.base(clone("change"), ci.Event(), "main") == of(origin, "fork")


def test_a_whole_clone_stays_whole(origin: Path, clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lacks the target's last commit, but no history: to fetch that commit alone would cut it."""
    root, words, real = clone("change", depth=None), list[str](), git_of_harness

    def asked(folder: Path, *arguments: str, **options: float) -> str:
        words.extend(arguments)
        return real(folder, *arguments, **options)

    monkeypatch.setattr(ci, "git", asked)
    assert ci.base(root, request(origin)) == of(origin, "fork")
    assert "fetch" in words
    assert not [word for word in words if word.startswith(("--depth", "--deepen", "--unshallow"))]


def test_a_push_is_compared_with_the_commit_before_it_and_a_schedule_with_the_parent(
    origin: Path, clone: Clone
) -> None:
    root = clone("main")
    assert ci.base(root, ci.Event("main", of(origin, "fork~2"), on_default=True)) == of(origin, "fork~2")
    assert ci.base(root, ci.Event("main", on_default=True)) == of(origin, "main~1")


def test_a_checkout_of_the_target_itself_compares_nothing_which_is_refused(origin: Path, clone: Clone) -> None:
    """As under pull_request_target, which checks out the base: a gate of it would pass whatever the change is."""
    root = clone("main")
    for event, target in ((request(origin), None), (ci.Event(), "main")):
        with pytest.raises(UsageError, match="no change to compare"):
            ci.base(root, event, target)


def test_what_cannot_be_found_says_how(origin: Path, clone: Clone) -> None:
    root = clone("change")
    with pytest.raises(UsageError, match="knows no branch 'nowhere'") as unknown:
        ci.base(root, ci.Event(), "nowhere")
    with pytest.raises(UsageError, match="nothing says what to compare with") as nothing:
        ci.base(root, ci.Event())
    git(root, "remote", "remove", "origin")
    with pytest.raises(UsageError, match="knows no branch") as offline:
        ci.base(root, request(origin))
    assert ("fetch-depth: 0" in unknown.value.advice, "--target main" in nothing.value.advice) == (True, True)
    assert "fetch-depth: 0" in offline.value.advice


@pytest.mark.slow  # test_sides.py has the submodules of both sides
def test_a_submodule_is_fetched_at_the_commit_of_the_base(tmp_path: Path) -> None:
    inner, outer, root = (tmp_path / name for name in ("inner", "outer", "clone"))
    for repository in (inner, outer):
        repository.mkdir()
        git(repository, "init", "--quiet", "--initial-branch=main")
        git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    passes(inner / "mine.py", 1)
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "--message=first")
    git(outer, "submodule", "add", "--quiet", f"file://{inner}", "third")
    git(outer, "commit", "--quiet", "--message=first")
    passes(inner / "mine.py", 2)
    git(inner, "commit", "--quiet", "--all", "--message=second")
    git(outer / "third", "pull", "--quiet")
    git(outer, "commit", "--quiet", "--all", "--message=second")
    git(
        tmp_path,
        "clone",
        "--quiet",
        "--depth=1",
        "--recurse-submodules",
        "--shallow-submodules",
        f"file://{outer}",
        root,
    )
    older = of(inner, "HEAD~1")
    with pytest.raises(subprocess.CalledProcessError):
        git(root / "third", "cat-file", "-e", older)
    assert ci.base(root, ci.Event("main", on_default=True)) == of(outer, "HEAD~1")
    git(root / "third", "cat-file", "-e", older)


@pytest.mark.parametrize(
    ("told", "ref", "event"),
    [
        (
            {"pull_request": {"base": {"ref": "main", "sha": "b"}, "head": {"sha": "h"}}},
            "refs/pull/3/merge",
            ci.Event("main", "b", "h"),
        ),
        (
            {"merge_group": {"base_ref": "refs/heads/main", "base_sha": "b", "head_sha": "h"}},
            "refs/heads/gh-readonly-queue/main/pr-3",
            ci.Event("main", "b"),
        ),
        ({"before": "b"}, "refs/heads/main", ci.Event("main", "b", on_default=True)),
        ({"before": "0" * 40}, "refs/heads/main", ci.Event("main", on_default=True)),
        ({"before": "b"}, "refs/heads/other", ci.Event("main")),
        ({"before": "b"}, "refs/tags/v1", ci.Event()),
        ({"schedule": "0 3 * * *"}, "refs/heads/main", ci.Event("main", on_default=True)),
    ],
)
def test_events_are_read(told: dict[str, object], ref: str, event: ci.Event, tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(json.dumps({"repository": {"default_branch": "main"}, **told}))
    assert ci.Event.read({"GITHUB_EVENT_PATH": str(file), "GITHUB_REF": ref}) == event


def test_a_file_that_is_no_event_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    for text in ("", "[]", '{"pull_request": {"base": {}}}'):
        file.write_text(text)
        with pytest.raises(UsageError, match="no event of GitHub"):
            ci.Event.read({"GITHUB_EVENT_PATH": str(file)})
    assert ci.Event.read({}) == ci.Event()
