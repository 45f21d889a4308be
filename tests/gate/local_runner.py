"""Runs the steps of a job or of a composite action in bash, as GitHub's runner does, with the words that tests need.

Steps that use an action of others do nothing but stand in a list.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Step = Mapping[str, Any]
_EXPRESSION = re.compile(r"\$\{\{(.+?)\}\}", re.DOTALL)
_NAME = re.compile(r"'(?:[^']|'')*'|\b(github|inputs|runner|steps|env)((?:\.[\w-]+)*)")
_BOOLEAN = {"&&": " and ", "||": " or "}


@dataclass
class Runner:
    """A job. folder: the working tree. temp: the runner's folder for one job. github, inputs: what `${{ }}` may name.

    variables: the environment of all steps. outputs, codes: of each step that ran. used: the actions of others.
    """

    folder: Path
    temp: Path
    github: Mapping[str, Any]
    inputs: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    output: str = ""
    failed: bool = False
    codes: dict[str, int] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)

    def run(self, steps: Sequence[Step]) -> Runner:
        """Run steps. One that fails keeps later ones from running, unless they say always()."""
        for step in steps:
            condition = step.get("if", True)
            if self.failed and "always()" not in str(condition):
                continue
            if isinstance(condition, str) and not self.value(condition.removeprefix("${{").removesuffix("}}")):
                continue
            self._step(step)
        return self

    @property
    def summary(self) -> str:
        """What the steps have written for the page of the job."""
        file = self.temp / "summary"
        return file.read_text() if file.exists() else ""

    def value(self, expression: str) -> Any:
        """What an expression comes to."""
        # Texts stand for themselves; a name is looked up; what isn't there is nothing.
        text = _NAME.sub(lambda found: repr(self._named(found)), expression)
        for word, meant in _BOOLEAN.items():
            text = text.replace(word, meant)
        known = {"always": lambda: True, "format": lambda form, *words: form.format(*words), "fromJSON": json.loads}
        return eval(text.strip(), {"__builtins__": {}, **known, "true": True, "false": False})

    def filled(self, text: object) -> str:
        """A text with its expressions filled in, as GitHub writes values."""

        def shown(value: Any) -> str:
            return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)

        return _EXPRESSION.sub(lambda found: shown(self.value(found[1])), str(text))

    def _named(self, found: re.Match[str]) -> Any:
        if found[1] is None:
            return found[0][1:-1].replace("''", "'")
        spaces = {"github": self.github, "inputs": self.inputs, "runner": {"temp": str(self.temp)}}
        value: Any = {**spaces, "steps": {key: {"outputs": told} for key, told in self.outputs.items()}}[found[1]]
        for part in found[2].split(".")[1:]:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _step(self, step: Step) -> None:
        if uses := step.get("uses"):
            self.used.append(uses.partition("@")[0])
            return
        told = self.temp / f"output-{len(self.codes)}"
        told.touch()
        environment = {key: self.filled(value) for key, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", self.filled(step["run"])],
            cwd=self.folder,
            env={
                **os.environ,
                "GITHUB_ACTIONS": "true",
                "GITHUB_OUTPUT": str(told),
                "GITHUB_STEP_SUMMARY": str(self.temp / "summary"),
                "RUNNER_TEMP": str(self.temp),
                **self.variables,
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        self.output += done.stdout + done.stderr
        self.codes[step.get("name", "")] = done.returncode
        self.failed = self.failed or done.returncode != 0
        self.outputs[step.get("id", "")] = dict(line.split("=", 1) for line in told.read_text().splitlines())
