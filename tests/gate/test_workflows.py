"""The action and the workflows for others' repositories: what they say, and what they do in such a repository.

The steps run in bash here. GitHub itself, its cache and its artifacts are left out.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import harness
from tests.gate import foreign
from tests.gate.foreign import git
from tests.gate.local_runner import Runner, Step

pytestmark = pytest.mark.slow

ROOT = Path(harness.__file__).parents[1]
ACTION = ROOT / "action.yml"
WORKFLOWS = ROOT / ".github" / "workflows"
GATE, COMMENT = WORKFLOWS / "gate.yml", WORKFLOWS / "gate-comment.yml"
CALLERS = (ROOT / "examples" / "gate.yml", ROOT / "examples" / "gate_comment.yml")
FEW_PAIRS = Path(__file__).with_name("few_pairs.py")
PIP = "pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check --target {site} {root}"
FORK = "forker/mine"


def loaded(file: Path) -> dict[str, Any]:
    found: dict[Any, Any] = yaml.safe_load(file.read_text())
    return {"on" if key is True else key: value for key, value in found.items()}  # YAML 1.1 takes `on` for true


def steps(file: Path) -> list[Step]:
    found = loaded(file)
    every: list[Step] = found["runs"]["steps"] if "runs" in found else next(iter(found["jobs"].values()))["steps"]
    return every


def inputs(file: Path, **given: object) -> dict[str, object]:
    """The inputs with their defaults. Raises KeyError for one that isn't declared."""
    found = loaded(file)
    declared = found["inputs"] if "inputs" in found else found["on"]["workflow_call"]["inputs"]
    values = {name: about.get("default") for name, about in declared.items()}
    return values | {name.replace("_", "-"): value for name, value in given.items() if declared[name.replace("_", "-")]}


def pull_request(repository: str = "owner/mine", **head: str) -> dict[str, Any]:
    event = {"pull_request": {"head": {"repo": {"full_name": repository}, **head}}}
    return {"event_name": "pull_request", "repository": "owner/mine", "event": event, "run_id": 7}


def test_actions_of_others_are_pinned_by_digest() -> None:
    used = [step["uses"] for file in (ACTION, GATE, COMMENT) for step in steps(file) if "uses" in step]
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40}", name)] == []
    text = "".join(file.read_text() for file in (ACTION, GATE, COMMENT))
    assert len(re.findall(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+\n", text)) == len(used), "the comment names the version"


def test_the_workflow_has_the_steps_of_the_action() -> None:
    """A workflow that others call can't name an action of its own revision."""
    of_action = {step["name"]: step["run"] for step in steps(ACTION) if "run" in step}
    of_workflow = {step["name"]: step["run"] for step in steps(GATE) if "run" in step}
    assert of_action == of_workflow
    assert list(of_action) == ["Forks", "Install", "Gate"]


def test_no_input_is_put_into_a_script() -> None:
    """A branch's name, say, would be run there."""
    for file in (ACTION, GATE, COMMENT):
        assert [step for step in steps(file) if "${{" in step.get("run", "")] == []


def test_what_stands_in_the_examples_is_there() -> None:
    for caller, called in zip(CALLERS, (GATE, COMMENT), strict=True):
        [job] = loaded(caller)["jobs"].values()
        workflow, _, version = job["uses"].partition("@")
        assert workflow.endswith(f"/.github/workflows/{called.name}")
        assert version == f"v{harness.__version__}"
        declared = loaded(called)["on"]["workflow_call"]["inputs"]
        assert job.get("with", {}).keys() <= declared.keys()
        assert {name for name, about in declared.items() if about.get("required")} <= job.get("with", {}).keys()
    assert inputs(GATE)["install"] == f"gpu-bench-harness=={harness.__version__}"
    lines = [line for line in CALLERS[0].read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) <= 6, "a name, and five lines"


def test_what_may_write_runs_nothing_of_the_change() -> None:
    assert loaded(GATE)["permissions"] == {"contents": "read"}
    comment = loaded(COMMENT)
    assert comment["permissions"] == {"actions": "read", "contents": "read", "pull-requests": "write"}
    assert not [step for step in steps(COMMENT) if "checkout" in step.get("uses", "")]
    assert loaded(CALLERS[1])["permissions"] == comment["permissions"]
    assert loaded(CALLERS[1])["on"]["workflow_run"]["workflows"] == [loaded(CALLERS[0])["name"]]


def test_a_fork_fails_on_a_machine_of_github_and_runs_nothing(tmp_path: Path) -> None:
    """A job or a step that an `if` leaves out would report success, also where it is required."""
    [job] = loaded(GATE)["jobs"].values()
    assert "if" not in job
    runner = Runner(tmp_path, tmp_path, pull_request(FORK), inputs(GATE))
    assert runner.filled(job["runs-on"]) == "ubuntu-latest"
    runner.run(job["steps"])
    assert (runner.failed, runner.codes) == (True, {"Forks": 1})
    assert runner.output.startswith("::error title=gate::")
    assert runner.used == ["actions/upload-artifact"]
    own = Runner(tmp_path, tmp_path, pull_request(), inputs(GATE))
    assert own.value(job["runs-on"].removeprefix("${{").removesuffix("}}")) == ["self-hosted", "gpu"]


@pytest.mark.parametrize(("branch", "saved"), [("main", True), ("other", False)])
def test_only_jobs_of_the_default_branch_save_the_noise(branch: str, saved: bool, tmp_path: Path) -> None:
    event = {"repository": {"default_branch": "main"}}
    github = {"event_name": "push", "repository": "o/r", "ref": f"refs/heads/{branch}", "event": event, "run_id": 7}
    for file, wanted in ((GATE, True), (ACTION, "true")):
        runner = Runner(tmp_path, tmp_path, github, inputs(file, cache_noise=wanted))
        runner.run([step for step in steps(file) if "run" not in step])
        assert ("actions/cache/save" in runner.used) == saved
        assert "actions/cache/restore" in runner.used
        kept = Runner(tmp_path, tmp_path, github, inputs(file)).run([s for s in steps(file) if "run" not in s])
        assert not [name for name in kept.used if "cache" in name]


def test_what_is_installed_is_the_harness_beside_the_torch_that_is_there(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho "made: $@"\nmkdir -p "$4/bin"\n'
        'printf \'#!/bin/sh\\necho "installed: $@"\\n\' > "$4/bin/python"\nchmod +x "$4/bin/python"\n'
    )
    python.chmod(0o755)
    [install] = [step for step in steps(ACTION) if step.get("name") == "Install"]
    github = {**pull_request(), "action_path": "/here/is the action"}
    runner = Runner(tmp_path, tmp_path, github, inputs(ACTION, python=str(python))).run([install])
    assert f"made: -m venv --system-site-packages {tmp_path}/gate\n" in runner.output
    assert runner.output.endswith(" /here/is the action\n")


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="needs actionlint on the path")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(
        ["actionlint", "-shellcheck=", *map(str, (GATE, COMMENT, *CALLERS))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0)


Fake = Callable[..., Runner]


@pytest.fixture
def commented(tmp_path: Path) -> Fake:
    """Runs the workflow of the comment, with a program in place of `gh` that notes what it is asked."""
    fake = tmp_path / "bin" / "gh"
    fake.parent.mkdir()
    fake.write_text(
        f"""#!{shutil.which("bash")}
echo "$*" >> "$ASKED"
case "$*" in
  *commits/*) echo "$PULL" ;;
  run\\ download*) [ -n "$REPORT" ] && mkdir -p report && cp "$REPORT" report/gate.md ;;
  *--paginate*) echo "$OLD" ;;
  *body=@body.md*) cp body.md "$BODY" ;;
esac
"""
    )
    fake.chmod(0o755)

    def run(**told: str) -> Runner:
        event = {
            "workflow_run": {
                "id": 9, "html_url": "https://example.org/run", "head_sha": "abcdef1234567890", "conclusion": "failure",
                "event": "pull_request",
            }
        }  # fmt: skip
        places = {name: str(tmp_path / name.lower()) for name in ("ASKED", "BODY")}
        path = f"{fake.parent}:/usr/bin:/bin"
        github = {"repository": "owner/mine", "event": event, "token": "t"}
        variables = {"PULL": "5", "REPORT": "", "OLD": "", "PATH": path, **places, **told}
        return Runner(tmp_path, tmp_path, github, inputs(COMMENT), variables).run(steps(COMMENT))

    return run


def test_one_comment_is_written_and_then_written_anew(commented: Fake, tmp_path: Path) -> None:
    report = tmp_path / "gate.md"
    report.write_text("# Gate FAILED\n\n@someone is called\n" + "é" * 40000)
    first = commented(REPORT=str(report))
    assert not first.failed, first.output
    body, asked = (tmp_path / "body").read_text(), (tmp_path / "asked").read_text()
    assert body.startswith("<!-- harness gate: gate -->\n# Gate FAILED\n\n@\u200bsomeone")
    assert body.endswith("[The job](https://example.org/run), at abcdef123456.\n")
    assert len(body) < 65536
    assert "--method POST repos/owner/mine/issues/5/comments" in asked
    assert not commented(REPORT=str(report), OLD="77").failed
    assert "--method PATCH repos/owner/mine/issues/comments/77" in (tmp_path / "asked").read_text()


def test_a_gate_without_a_report_is_told_and_an_old_commit_is_not_commented_on(commented: Fake, tmp_path: Path) -> None:
    assert not commented().failed
    assert "The job ended as failure before it could write one." in (tmp_path / "body").read_text()
    (tmp_path / "body").unlink()
    assert not commented(PULL="").failed
    assert not (tmp_path / "body").exists()


class Foreign:
    """A repository of somebody else on GitHub, and jobs of its pull requests."""

    def __init__(self, folder: Path) -> None:
        self.origin = foreign.make(folder)
        self._folder = folder
        git(self.origin, "config", "uploadpack.allowAnySHA1InWant", "true")

    def job(self, name: str) -> Runner:
        """Commit what changed as a pull request of this name, and run the action in a checkout of its merge."""
        git(self.origin, "switch", "--quiet", "--create", name)
        git(self.origin, "add", ".")
        git(self.origin, "commit", "--quiet", f"--message={name}")
        head = git(self.origin, "rev-parse", "HEAD").strip()
        git(self.origin, "switch", "--quiet", "--detach", "trunk")
        git(self.origin, "merge", "--quiet", "--no-ff", "--message=merge", name)
        clone, temp = self._folder / name / "mine", self._folder / name / "temp"
        git(self._folder, "init", "--quiet", str(clone))
        git(clone, "remote", "add", "origin", f"file://{self.origin}")
        git(clone, "fetch", "--quiet", "--depth=1", "origin", git(self.origin, "rev-parse", "HEAD").strip())
        git(clone, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        git(clone, "submodule", "--quiet", "update", "--init", "--depth=1")
        git(self.origin, "submodule", "--quiet", "update")
        self._install(temp)
        event = {**pull_request(sha=head)["event"], "repository": {"default_branch": "trunk"}}
        event["pull_request"]["base"] = {"ref": "trunk", "sha": git(self.origin, "rev-parse", "trunk").strip()}
        (temp / "event.json").write_text(json.dumps(event))
        names = ("packaged", "vendored", *(("compiled",) if shutil.which("g++") else ()))
        given = {
            "scenarios": "".join(f"{name}.yaml\n" for name in names),
            "ops": "small.py\n" + "".join(f"{name}.py\n" for name in names[1:]),
            "prepare": PIP,
            "options": "--device=cpu\n--precision=0.05\n--max-time=0.05\n--margin=90%\n--calibrate=0\n",
        }
        variables = {
            "PYTHONPATH": f"{foreign.ROOT}:{clone / 'third' / 'vendored'}",
            "HARNESS_CACHE": str(self._folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "GITHUB_EVENT_PATH": str(temp / "event.json"),
            "GITHUB_REF": "refs/pull/3/merge",
        }
        runner = Runner(clone, temp, {**pull_request(), "event": event}, inputs(ACTION, **given), variables)
        return runner.run([step for step in steps(ACTION) if step.get("name") != "Install"])

    def _install(self, temp: Path) -> None:
        """What the step `Install` leaves: here, the harness of this repository, with few pairs."""
        program = temp / "gate" / "bin" / "harness"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", str(FEW_PAIRS)])} "$@"\n')
        program.chmod(0o755)


def report(runner: Runner) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((runner.temp / "gate" / "gate.json").read_text())
    return found


@pytest.mark.timeout(300)
def test_a_pull_request_of_another_s_repository(tmp_path: Path) -> None:
    """A slow package, submodule and header end with 1; a change of a file that no case uses ends with 0."""
    mine = Foreign(tmp_path)
    foreign.write_op(mine.origin, "kept", factor=3)
    same = mine.job("same")
    assert same.codes["Gate"] == 0, same.output
    assert same.outputs["gate"]["verdict"] == "passed"
    assert "both sides use the same code" in same.output
    git(mine.origin, "switch", "--quiet", "trunk")
    git(mine.origin, "submodule", "--quiet", "update")
    foreign.passes(mine.origin / "src" / "mykern" / "double.py", foreign.SLOW)
    foreign.passes(mine.origin / "include" / "passes.h", foreign.SLOW)
    foreign.bump(mine.origin, commit=False)
    git(mine.origin / "third" / "vendored", "push", "--quiet", "origin", "HEAD:refs/heads/slower")
    slow = mine.job("slow")
    told = slow.outputs["gate"]
    assert (slow.codes["Gate"], told["exit"], told["verdict"]) == (1, "1", "failed"), slow.output
    assert told["base"] == git(mine.origin, "rev-parse", "trunk").strip()
    lost = {case["case"]["op"] for case in report(slow)["cases"] if case["decision"]["outcome"] == "regressed"}
    assert lost == {"packaged", "vendored", "compiled"} - (set() if shutil.which("g++") else {"compiled"})
    assert "# Gate FAILED" in slow.summary
    assert re.search(r"^::error file=[\w./]+,title=gate%2C slower::", slow.output, re.MULTILINE)
