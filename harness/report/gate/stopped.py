"""A gate that ended before it could judge: with exit code 2, 4 or 70. CI finds the same files as of any other gate."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import NO_EXIT, Exit, HarnessError, InputError, described
from harness.report.gate import SUMMARY, WORKSPACE, github
from harness.report.gate.formats.junit import clean
from harness.report.gate.formats.markdown import FIGURE
from harness.report.placing import placed

WORDS = {Exit.USAGE: "wrong usage", Exit.ENVIRONMENT: "not valid", Exit.BUG: "a bug of the harness"}
_PLACE = re.compile(r"^(?P<file>/?[^\s:]+):(?P<line>\d+)?")


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a gate ended before it could judge. message: what was found; advice: what to do; command: program first."""

    exit: int
    message: str
    advice: str
    command: tuple[str, ...] = ()

    @classmethod
    def by(cls, error: BaseException, command: Sequence[str]) -> Stopped:
        """By an error: one that the harness reports, or a bug."""
        if isinstance(error, InputError):
            return cls(error.exit_code, "\n".join(error.told()), "", tuple(command))
        if isinstance(error, HarnessError):
            return cls(error.exit_code, error.message, error.advice, tuple(command))
        if isinstance(error, SystemExit):  # of code of a user
            return cls(Exit.USAGE, described(error), NO_EXIT, tuple(command))
        if isinstance(error, OSError):
            return cls(Exit.ENVIRONMENT, str(error), "", tuple(command))
        advice = "this is a bug in harness; report it with the command and these lines"
        return cls(Exit.BUG, described(error), advice, tuple(command))

    @property
    def word(self) -> str:
        return WORDS.get(Exit(self.exit), "stopped")

    @property
    def text(self) -> str:
        return f"{self.message}\n{self.advice}".strip()


def write(stopped: Stopped, folder: Path) -> list[Path]:
    """Write gate.json, gate.md and junit.xml into the folder, which is made if need be. Gives their paths."""

    def write_into(draft: Path) -> list[Path]:
        texts = {"gate.json": _json(stopped), "gate.md": page(stopped), "junit.xml": _junit(stopped)}
        for name, text in texts.items():
            (draft / name).write_text(text, encoding="utf-8")
        return [draft / name for name in texts]

    made = placed(folder, write_into)
    (folder / FIGURE).unlink(missing_ok=True)  # of an earlier gate
    return made


def publish(stopped: Stopped, environ: Mapping[str, str], here: Path) -> None:
    """Tell GitHub, where it asks for it: a summary, and an annotation. here: the folder in which the command runs."""
    if environ.get("GITHUB_ACTIONS") == "true":
        sys.stdout.write(f"{annotation(stopped, here, environ.get(WORKSPACE, ''))}\n")
        sys.stdout.flush()
    if summary := environ.get(SUMMARY):
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(page(stopped))
        except OSError as error:
            sys.stdout.write(f"{github.command('warning', 'summary', f'{summary}: {error.strerror}')}\n")


def annotation(stopped: Stopped, here: Path, workspace: str = "") -> str:
    """The annotation of a workflow, beside the file and line that the message begins with, if it does.

    here: where the paths of messages begin; workspace: where GitHub's paths begin, if that is known. Of an error in
    Python the message names the line later, beside the name of the file alone.
    """
    found = _PLACE.match(stopped.message.removeprefix("--ops "))
    path = Path(found["file"]) if found else None
    top = Path(workspace).resolve() if workspace else here
    full = here / path if path else here
    if found is None or path is None or path.is_dir() or not full.is_relative_to(top):
        return github.command("error", stopped.word, stopped.text)
    file = str(full.relative_to(top))
    raised = re.search(rf"\({re.escape(path.name)}:(\d+) in ", stopped.message)
    line = found["line"] or (raised[1] if raised else 0)
    return github.command("error", stopped.word, stopped.text, file, int(line))


def page(stopped: Stopped) -> str:
    """The page as Markdown. The message stands in a block, so that nothing in it is taken for Markdown."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", stopped.text)), default=0))
    head = f"# Gate stopped: {stopped.word}\n\nExit code {stopped.exit:d}: nothing was decided.\n\n"
    return f"{head}{fence}text\n{stopped.text}\n{fence}\n"


def _json(stopped: Stopped) -> str:
    record: dict[str, Any] = {"stopped": asdict(stopped), "findings": [], "cases": []}
    return json.dumps(record, indent=2) + "\n"


def _junit(stopped: Stopped) -> str:
    root = ET.Element("testsuites")
    suite = ET.SubElement(root, "testsuite", name="gate", tests="1", failures="0", errors="1", skipped="0")
    test = ET.SubElement(suite, "testcase", classname="gate", name=clean(stopped.word), time="0.000")
    first = stopped.message.partition("\n")[0]
    error = ET.SubElement(test, "error", message=clean(first), type=str(int(stopped.exit)))
    error.text = clean(stopped.text)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
