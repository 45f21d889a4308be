"""What GitHub reads: the workflows, the forms of issues, and the file that says how to cite."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import __version__
from tests.one_test import one_test
from tests.rare import rare

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
EVERY = sorted((GITHUB / "workflows").glob("*.yml"))
OURS = [GITHUB / "workflows" / name for name in ("site.yml", "tests.yml")]
"""The workflows of this repository's own changes. Others are for other repositories to call."""
FORMS = [file for file in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if file.name != "config.yml"]
CITATION = ROOT / "CITATION.cff"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAY_WRITE = {("site.yml", "publish"): {"id-token", "pages"}}
"""The only jobs that may write, and what."""


def parsed(file: Path) -> dict[str, Any]:
    """A file of YAML. The key `on` is the text, not the boolean that YAML 1.1 takes it for."""
    found: dict[Any, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def name(file: Path) -> str:
    return file.name


def unpinned(text: str) -> list[str]:
    """Actions of others that aren't named by a commit, with their version in a comment."""
    used = re.findall(r"^\s*(?:- )?uses: (?!\./)(.+)$", text, re.MULTILINE)
    return [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)]


@one_test("file", EVERY, ids=name)
def test_every_action_is_named_by_its_commit_and_version(file: Path) -> None:
    assert unpinned(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("used", ["actions/checkout@v5", f"actions/checkout@{'0' * 40}", f"a/b@{'0' * 39} # v1.0.0"])
def test_an_action_by_a_tag_is_noticed(used: str) -> None:
    assert unpinned(f"      - uses: {used}\n") == [used]


@one_test("file", EVERY, ids=name)
def test_no_text_of_an_event_is_put_into_a_script(file: Path) -> None:
    scripts = [step["run"] for step in steps(parsed(file)) if "run" in step]
    assert [script for script in scripts if "${{" in script] == []


@pytest.mark.parametrize("file", OURS, ids=name)
def test_only_the_job_that_publishes_may_write(file: Path) -> None:
    workflow = parsed(file)
    assert workflow["permissions"] == {"contents": "read"}
    for job, content in workflow["jobs"].items():
        writes = {key for key, value in content.get("permissions", {}).items() if value != "read"}
        assert writes == MAY_WRITE.get((file.name, job), set())


@pytest.mark.parametrize("file", OURS, ids=name)
def test_a_job_ends_and_an_outdated_one_is_ended(file: Path) -> None:
    workflow = parsed(file)
    assert [job for job, content in workflow["jobs"].items() if not content.get("timeout-minutes")] == []
    assert {"group", "cancel-in-progress"} == workflow["concurrency"].keys()


@pytest.mark.parametrize("file", OURS, ids=name)
def test_a_checkout_leaves_no_token_behind(file: Path) -> None:
    checkouts = [step for step in steps(parsed(file)) if "checkout@" in step.get("uses", "")]
    assert checkouts
    assert [step for step in checkouts if step["with"]["persist-credentials"] is not False] == []


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = [int(text.removeprefix(prefix)) for text in PROJECT["classifiers"] if re.fullmatch(rf"{prefix}\d+", text)]
    matrix = parsed(OURS[1])["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == [f"3.{minor}" for minor in minors]
    assert PROJECT["requires-python"] == f">=3.{min(minors)}"


def test_only_main_is_published() -> None:
    publish = parsed(OURS[0])["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert "github.ref == 'refs/heads/main'" in publish["if"]
    assert "github.event_name != 'pull_request'" in publish["if"]


@pytest.mark.parametrize("file", OURS, ids=name)
def test_what_a_workflow_runs_of_this_repository_is_there(file: Path) -> None:
    scripts = "\n".join(step["run"] for step in steps(parsed(file)) if "run" in step)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", scripts, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    for path in re.findall(r"^(?:\./)?(\.ci/\w+|scripts/[\w.]+)", scripts, re.MULTILINE):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        *((pytest.param if file.name == "tests.yml" else rare)("vendor.github-workflows", file) for file in EVERY),
        *(("vendor.github-issue-forms", file) for file in FORMS),
        ("vendor.github-issue-config", GITHUB / "ISSUE_TEMPLATE" / "config.yml"),
        ("vendor.dependabot", GITHUB / "dependabot.yml"),
        ("vendor.citation-file-format", CITATION),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_a_file_is_as_its_schema_says(schema: str, file: Path) -> None:
    builtin = pytest.importorskip("check_jsonschema.builtin_schemas", reason="the extra `test` isn't installed")
    jsonschema = pytest.importorskip("jsonschema")
    # Dates stay texts, as the schemas have them.
    content = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader if file == CITATION else yaml.SafeLoader)
    found = {"on" if key is True else key: value for key, value in content.items()}
    jsonschema.validate(found, builtin.get_builtin_schema(schema))


def test_actionlint_finds_nothing() -> None:
    if not (program := shutil.which("actionlint")):
        pytest.skip("actionlint isn't installed")
    done = subprocess.run([program, *map(str, EVERY)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_citation_is_of_this_version() -> None:
    cited = parsed(CITATION)
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{__version__}] - {cited['date-released']}" in changelog


@pytest.mark.parametrize("file", FORMS, ids=name)
def test_a_form_asks_for_what_is_needed_under_names_of_their_own(file: Path) -> None:
    fields = [part for part in parsed(file)["body"] if part["type"] != "markdown"]
    ids = [field["id"] for field in fields]
    assert len(set(ids)) == len(ids)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_forms_of_faults_ask_for_the_machine_by_a_command_that_there_is() -> None:
    from harness.cli import AllCommands

    assert "env" in AllCommands.FILES
    for form in ("bug.yml", "wrong_number.yml"):
        machine = next(part for part in parsed(GITHUB / "ISSUE_TEMPLATE" / form)["body"] if part.get("id") == "machine")
        assert "`harness env`" in machine["attributes"]["description"]
