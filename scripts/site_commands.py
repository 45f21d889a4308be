"""The reference pages of the site that come from options: the commands of `harness`, and what pytest gets."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import typer
from site_reference import directive, prose

from harness import pytest_plugin
from harness.cli import app
from harness.report.formats.markdown import prose as plain

PROGRAM = "harness"
INDEX = "index"
BY_ARGUMENT = {"gate": ("calibrate",)}
"""Commands whose first argument may be a command, which no list of commands tells."""


def commands() -> dict[str, str]:
    """The page of each command by its name; the page of the program itself is INDEX."""
    main = typer.main.get_command(app)
    program = _context(main, None, [])
    found = {INDEX: _section(program, 1)}
    for name, command in _of_group(main).items():
        own = _context(command, program, [])
        under = [_context(each, own, []) for each in _of_group(command).values()]
        under += [_context(command, program, [word]) for word in BY_ARGUMENT.get(name, ())]
        found[name] = "\n\n".join([_section(own, 1), *(_section(each, 2) for each in under)]) + "\n"
    return found


def _context(command: Any, parent: Any, words: list[str]) -> Any:
    """The context in which a command would run, without what it asks for."""
    return command.make_context(command.name if parent else PROGRAM, words, parent, resilient_parsing=True)


def _of_group(command: Any) -> dict[str, Any]:
    return {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}


def _section(context: Any, level: int) -> str:
    """A command: what it does, its arguments and options, its examples."""
    command, path = context.command, context.command_path
    command.get_help(context)  # commands add to their examples when they are asked for help
    parameters = [each for each in command.get_params(context) if "--help" not in each.opts]
    parts = [
        f"{'#' * level} {'' if ' ' in path else 'The command line: '}`{path}`",
        prose(inspect.cleandoc(command.help or "")),
        f"```text\n{' '.join([path, *command.collect_usage_pieces(context)])}\n```",
        f"```{{program}} {path}\n```",
        *(_parameter(each, context) for each in parameters),
        _lines(command.epilog or ""),
    ]
    return "\n\n".join(part for part in parts if part)


def _parameter(parameter: Any, context: Any) -> str:
    """An argument or an option, as `--help` writes it; nothing for a hidden one."""
    record = parameter.get_help_record(context)
    if not record:
        return ""
    names, text = record
    if parameter.param_type_name == "argument":
        return f"**{plain(names.partition(' <')[0])}**: {plain(text)}"
    return option(names, text)


def option(names: str, text: str) -> str:
    """An option with what it does; its text is no Markdown."""
    return f":::{{option}} {names}\n\n{plain(text)}\n:::"


def _lines(epilog: str) -> str:
    """Examples and exit codes, whose lines stay as they are."""
    text = textwrap.dedent(epilog.replace("\b\n", "").replace("\b", "")).strip()
    return f"```text\n{text}\n```" if text else ""


class _Options:
    """A parser of pytest that takes down what a plug-in adds."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def getgroup(self, *_: str) -> _Options:
        return self

    def addoption(self, name: str, **told: Any) -> None:
        self.found.append((name, told))


def of_pytest() -> str:
    """The page of the plug-in for pytest: its docstring, its fixture, its options."""
    parser: Any = _Options()
    pytest_plugin.pytest_addoption(parser)
    options = [option(f"{name} {told.get('metavar', '')}", told["help"]) for name, told in parser.found]
    fixture = directive(
        "function",
        "gpu_time(function, *args, **options) -> Time",
        prose(inspect.cleandoc(pytest_plugin.gpu_time.__doc__ or "")),
        4,
    )
    begin = ["# In pytest: `gpu_time`", prose(inspect.getdoc(pytest_plugin) or "")]
    module = "```{py:module} harness.pytest_plugin\n```"
    return "\n\n".join([*begin, module, fixture, "## Options", "```{program} pytest\n```", *options]) + "\n"
