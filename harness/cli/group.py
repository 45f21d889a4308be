"""How every command ends: errors become a message and an exit code, never a traceback."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from harness.cli.streams import silence, tell
from harness.errors import NO_EXIT, Exit, HarnessError, InputError, clipped, described

LISTED = ("ops", "op", "scenarios", "scenario", "formats", "devices")
"""The commands of `harness list`."""
_LONGEST = 20_000  # characters of a message, which may be a compiler's log


class QuickGroup(TyperGroup):
    """A group that doesn't load pydantic, which alone takes longer than listing everything."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, with a default that typer needn't convert."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option

    def get_params(self, ctx: Any) -> Any:
        """The parameters; completion's have a default that typer needn't convert, too."""
        params = super().get_params(ctx)
        for param in params:
            if param.name in ("install_completion", "show_completion"):
                param.default = False
        return params


def alone() -> typer.Typer:
    """The app of a file with a single command."""
    # Help that Rich draws would take as long as everything else together.
    return typer.Typer(add_completion=False, rich_markup_mode=None)


class _Files(Mapping[str, Any]):
    """Commands by name, each made of the `app` in its file. A file is imported when its command is asked for."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            command = typer.main.get_command(import_module(f"harness.cli.{self._files[name]}").app)
            command.name = name
            self._made[name] = command
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class Commands(QuickGroup):
    """The group of all commands. FILES: the file of each command in this folder, by the command's name."""

    FILES: Mapping[str, str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = _Files(self.FILES)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click calls it so
        """The names of all commands, none of which is imported."""
        return list(self.FILES)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names. What `list` lists is no command, so that is said."""
        if args and args[0] in LISTED:
            ctx.fail(f"No such command '{args[0]}'. Did you mean 'list {args[0]}'?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for. Raises typer.Exit with the code of the error, if there is one."""
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            tell(explain(error))
            raise typer.Exit(error.exit_code) from None
        except SystemExit as error:
            # Nothing of ours calls sys.exit here. Code of a user may, and its exit code would stand for the command's.
            tell(f"error: {described(error)}\n  {NO_EXIT}")
            raise typer.Exit(Exit.USAGE) from None
        except BrokenPipeError:
            # The reader of the pipe is gone, as in `harness list | head`.
            silence()
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except OSError as error:
            tell(f"error: {error}")
            raise typer.Exit(Exit.ENVIRONMENT) from None


def explain(error: HarnessError) -> str:
    """The error as text: what is wrong, then what to do; the first problems of an input on a line of their own each."""
    if isinstance(error, InputError):
        count, lines = len(error.problems), error.told()
        return f"error: {lines[0]}" if count == 1 else "\n  ".join([f"error: {count:,} problems:", *lines])
    message, advice = clipped(error.message, _LONGEST), clipped(error.advice, _LONGEST)
    return f"error: {message}" + (f"\n  {advice}" if advice else "")
