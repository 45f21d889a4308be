"""Options that several commands have."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Annotated, get_origin, get_type_hints

import pytest
from typer.testing import CliRunner

import harness.cli
from harness.cli import app, gate, gate_calibrate, options
from tests.one_test import one_test

FOLDER = Path(harness.cli.__file__).parent


def test_the_commands_of_the_gate_declare_their_options_once() -> None:
    shared = {name: made for name, made in vars(options).items() if get_origin(made) is Annotated}
    hints = [get_type_hints(module.command, include_extras=True) for module in (gate, gate_calibrate)]
    for name, made in shared.items():
        assert all(made in known.values() for known in hints), name
    common = hints[0].keys() & hints[1].keys() - {"base", "output", "return"}
    assert {hints[0][name] for name in common} == {hints[1][name] for name in common} == set(shared.values())


def test_an_options_name_is_stated_where_its_metavar_is_the_same_word() -> None:
    """Typer 0.27 would take `--SIZES` for the option's name."""
    same = re.compile(r"(\w+): Annotated\[[^\n]*\n?[^\n]*?typer\.Option\(metavar=\"(\w+)\"")
    for file in FOLDER.rglob("*.py"):
        for found in same.finditer(file.read_text("utf-8")):
            assert found[1].upper() != found[2], f'{file.name}: say typer.Option("--{found[1]}", metavar=...)'


def test_everything_that_a_request_takes_has_an_option() -> None:
    taken = set(inspect.signature(options.gate_request).parameters) - {"base", "scenarios"}
    assert taken <= set(inspect.signature(gate.command).parameters)


@pytest.mark.parametrize("name", ["gate_calibrate", "gate_progress", "options"])
def test_nothing_that_the_command_gate_imports_imports_it(name: str) -> None:
    """The module doesn't import the command's module, not even inside a function: that would be a circle."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    assert "harness.cli.gate" not in imported


@one_test(
    ("arguments", "limit"),
    [
        (["run", "quick", "--repeat", "1" + "0" * 15], "1000"),
        (["run", "quick", "--max-time", "1e15"], "86400"),
        (["run", "quick", "--max-time", "inf"], "86400"),
        (["gate", "--base", "HEAD", "ci", "--max-time", "1e15"], "86400"),
        (["gate", "--base", "HEAD", "ci", "--seed", "9" * 400], str(2**63 - 1)),
        (["gate", "calibrate", "--blocks", "1" + "0" * 15], "1000"),
        (["profile", "losses", "quick", "--steps", "1" + "0" * 15], "1000000"),
    ],
)
def test_a_number_has_a_limit_that_is_stated(arguments: list[str], limit: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert limit in done.output
