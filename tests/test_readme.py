"""The README: its length, its words, its commands and its scenario; and the links of all pages."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import typer

from harness.cli import app
from harness.ops import Catalogue
from harness.profile import tools
from harness.scenario import Selection, find, load, plan
from tests.one_test import one_test

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "scenarios/README.md")]
PAGES = [
    *OTHERS,
    *(page for room in ("harness", "kernels", "examples") for page in (ROOT / room).rglob("*.md")),
    *(ROOT / "reports").glob("*.md"),
]
WRITTEN = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "reports/training.md", "reports/scaling.md")]
"""Pages whose commands are tried, since a reader copies them."""
WORDS = (
    "op",
    "variant",
    "case",
    "modes",
    "peak",
    "ceiling",
    "over eager",
    "noise",
    "interval",
    "scenario",
    "row",
    "gate",
)
"""Words of the house, which the README defines in bold."""


def test_it_is_read_in_five_minutes():
    assert len(README.splitlines()) <= 250


def test_the_first_result_stands_on_the_first_screens():
    lines = README.splitlines()
    assert next(number for number, line in enumerate(lines, 1) if line.startswith("$ harness run")) < 40
    assert any(line.startswith("![") for line in lines)


@one_test("word", WORDS)
def test_no_section_uses_a_word_before_the_section_that_defines_it(word):
    sections = prose().split("\n## ")
    defined = next(number for number, section in enumerate(sections) if f"**{word}**" in section)
    used = [number for number, section in enumerate(sections) if re.search(rf"\b{word}\b", section)]
    assert min(used) == defined


def test_every_column_and_variant_of_the_first_table_is_explained():
    table = README[README.index("variant            (us)") :]
    told = prose()
    variants = re.findall(r"^(\w+) ", table[: table.index("\n\n")], re.MULTILINE)[1:]
    assert len(variants) == 8
    assert [name for name in variants if f"`{name.removesuffix('64')}`" not in README] == []
    columns = ("variant", "time", "GB/s", "of peak", "of ceiling", "vs eager", "noise", "registers")
    assert [name for name in columns if f"**{name}**" not in told] == []


def prose() -> str:
    """The README without code and without marks."""
    return re.sub(r"```.*?```|`[^`]*`|<!--.*?-->|!\[[^\]]*|\]\([^)]*\)", "", README, flags=re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The commands of the harness on a page, in blocks of shell and in backquotes."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL))
    lines = [line for line in blocks.splitlines() if line.startswith("harness ")]
    quoted = [found for found in re.findall(r"`(harness [^`]+)`", text) if "..." not in found]
    return [shlex.split(command, comments=True)[1:] for command in (*lines, *quoted)]


@one_test("page", WRITTEN, ids=lambda page: page.name)
def test_every_command_exists_with_its_options(page):
    assert commands(page)
    assert [(words, wrong) for words in commands(page) if (wrong := complaint(words))] == []


def test_a_command_that_does_not_exist_would_be_noticed():
    assert complaint(["mesure", "quick"]) == "no command mesure"
    assert "--fast" in complaint(["run", "quick", "--fast"])
    assert "slow: no scenario" in complaint(["run", "slow"])
    assert complaint(["profile", "vtune", "quick"]) == "no tool vtune"
    assert complaint(["list", "op", "hardmax"]) == "no op hardmax"
    assert complaint(["run", "quick", "--only", "prelu/*", "--device=cpu"]) == ""


def complaint(words: list[str]) -> str:
    """What is wrong with a command; empty if nothing is."""
    own = words[: words.index("--")] if "--" in words else words
    command, name = typer.main.get_command(app), "harness"
    while own and own[0] in (commands := getattr(command, "commands", {})):
        (name, *own), command = own, commands[own[0]]
    if name == "harness":
        return f"no command {words[0]}"
    try:
        # Without what only a stored run tells.
        given = command.make_context(name, [word for word in own if word != "--resume"]).params
        find([scenario for scenario in given.get("scenarios") or () if re.fullmatch("[a-z_0-9]+", scenario)])
    except Exception as error:  # of the parser, or of the search
        # A sentence may name a command without its arguments.
        return "" if str(error).startswith("Missing parameter") else str(error)
    if name == "profile" and given["tool"] not in tools():
        return f"no tool {given['tool']}"
    return f"no op {given['name']}" if words[:2] == ["list", "op"] and given["name"] not in Catalogue() else ""


def test_the_scenario_of_the_readme_is_valid(tmp_path):
    (text,) = re.findall(r"## Write a scenario\n.*?```yaml\n(.*?)```", README, re.DOTALL)
    file = tmp_path / "shown.yaml"
    file.write_text(text)
    catalogue = Catalogue()
    jobs = plan(load([file], catalogue), catalogue, Selection(device="cuda")).jobs
    assert len(jobs) == 2 * 2 * len(catalogue["prelu"].variants)
    assert {dict(job.case.shape)["W"] for job in jobs} == {7}


@one_test("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not leads_somewhere(page, *link)] == []


def test_a_link_to_nowhere_would_be_noticed():
    page = ROOT / "README.md"
    assert leads_somewhere(page, "kernels/README.md", "limits")
    assert leads_somewhere(page, "", "two-commands")
    assert not leads_somewhere(page, "kernels/README.md", "no-limits")
    assert not leads_somewhere(page, "kernels/NONE.md", "")


def leads_somewhere(page: Path, target: str, heading: str) -> bool:
    """Whether the file is there, and has a heading that GitHub would give this name."""
    file = page.parent / target if target else page
    if not heading:
        return file.exists()
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
