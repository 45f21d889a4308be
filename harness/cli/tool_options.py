"""Options that only some tools of `harness profile` have, as the tools themselves declare them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import typer

from harness.errors import UsageError


@cache
def parameters() -> tuple[Any, ...]:
    """A parameter of the command line for each option of a tool."""

    def stub(**_: int | None) -> None:
        """Has the parameters that typer makes options of."""

    kinds = {name: _annotated(name, meanings) for name, meanings in _by_name().items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    stub.__annotations__ = dict(kinds)
    stub.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=None, annotation=kinds[name]) for name in kinds]
    )
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(stub)
    return tuple(typer.main.get_command(app).params)


def _annotated(name: str, meanings: Mapping[str, str]) -> Any:
    least = min(option.least for ways in _ways().values() for option in ways.options if option.name == name)
    told = "; ".join(f"{tool}: {meaning}" for tool, meaning in meanings.items())
    return Annotated[int | None, typer.Option(f"--{name}", min=least, metavar="N", help=f"{told}.")]


def _by_name() -> dict[str, dict[str, str]]:
    """What each option means to each tool that has it."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for tool, ways in _ways().items():
        for option in ways.options:
            found[option.name][tool] = f"{option.meaning}; {option.usual} unless told"
    return found


def _ways() -> dict[str, Any]:
    from harness.profile import Ways, tools

    return {name: Ways.of(tool) for name, tool in tools().items()}


def taken(params: dict[str, Any]) -> dict[str, int]:
    """The options of tools that were given. They are taken out of `params`, since the command doesn't have them."""
    found = {name: params.pop(name, None) for name in _by_name()}
    return {name: value for name, value in found.items() if value is not None}


def refuse_others(tool: str, given: Mapping[str, int]) -> None:
    """Raise UsageError for options that this tool doesn't have, or that it wants larger."""
    own = {option.name: option for option in _ways()[tool].options}
    for name, value in given.items():
        if name not in own:
            others = " and ".join(_by_name()[name])
            raise UsageError(f"{tool} takes no --{name}: it is for {others}", "leave it out")
        if value < own[name].least:
            raise UsageError(f"--{name} {value} is too little for {tool}", f"{own[name].least} or more")
        if value > own[name].most:
            raise UsageError(f"--{name} {value} is too much for {tool}", f"{own[name].most} or less")


def epilog() -> str:
    """The examples of tools, and what each tool tells, for the end of the help."""
    from harness.profile import tools

    examples = "".join(f"\n  harness profile {tool} {text}" for tool, ways in _ways().items() for text in ways.examples)
    width = max(map(len, tools()))
    told = "\n".join(f"  {name:{width}}  {tool.SUMMARY}" for name, tool in tools().items())
    return f"{examples}\n\n\b\nTools:\n{told}"
