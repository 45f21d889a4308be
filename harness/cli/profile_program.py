"""`harness profile torch -- PROGRAM`: the timeline of a user's own program, of one process or of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from harness import paths
from harness.errors import MachineError, UsageError

if TYPE_CHECKING:
    from harness.profile.torch import RanksProfile


def run(
    tool: str,
    program: Sequence[str],
    output: Path | None,
    chosen: tuple[int | None, int | None, str | None],
    *,
    refused: bool,
) -> None:
    """Profile a user's own program by torch's profiler, and end with its exit code.

    chosen: --wait, --active and --ranks. refused: whether an option was given that isn't for programs.
    """
    from harness.cli import values
    from harness.cli.console import open_console
    from harness.ops import Catalogue
    from harness.profile import torch
    from harness.report import terminal, timeline

    if refused:
        told = "a program behind '--' takes no options but --output, --families, --wait, --active and --ranks"
        raise UsageError(told, "leave the other options out")
    if tool != "torch":
        raise UsageError(f"{tool} runs programs by itself", "'harness profile torch -- python train.py' needs no tool")
    wait, active, ranks = chosen
    Catalogue()  # whose ops say of which families their kernels are; the program may use them by harness.nn
    folder = output or paths.new_report("profile-torch")
    usual = torch.WINDOW
    window = usual._replace(wait=usual.wait if wait is None else wait, active=active or usual.active)
    found = torch.of_script(program, folder, window, values.numbers(ranks or ""))
    if len(found.traces) > 1:
        _show(torch.of_ranks(found.traces), folder)
    else:
        (trace,) = found.traces
        try:
            line = torch.timeline(trace)
        except torch.EmptyTraceError:
            told = (
                "only this process's first thread is recorded, and no processes that it starts: let torchrun start "
                "ranks, as in harness profile torch -- torchrun --nproc-per-node 2 train.py"
            )
            raise MachineError(
                f"{' '.join(program)}: ended with exit code {found.exit_code} and called nothing of torch",
                "try it first without the profiler" if found.exit_code else told,
            ) from None
        terminal.show(timeline.page(line, trace), open_console())
        for path in timeline.write(line, trace, folder):
            typer.echo(path)
    raise typer.Exit(found.exit_code if found.exit_code >= 0 else 128 - found.exit_code)


def show_ranks(tool: str, traces: Path, output: Path | None, *, refused: bool) -> None:
    """Lay the traces in a folder, one of each rank, over each other.

    output: the folder of the page; the same if None. refused: whether an option was given that isn't for ranks.
    """
    from harness.ops import Catalogue
    from harness.profile import torch

    if tool != "torch" or refused:
        told = f"{traces} is a folder, which 'harness profile torch --import' alone takes, and without --run"
        raise UsageError(told, "name a folder with one trace of each rank: trace.rank0.json.gz ...")
    every = (path for path in traces.iterdir() if path.name.endswith(torch.SUFFIXES))
    paths = sorted(path for path in every if path.name != torch.MERGED)
    if len(paths) < 2:
        raise UsageError(
            f"{traces}: has {len(paths)} traces of torch's profiler, and several ranks have two or more",
            "name a folder with one trace of each rank: trace.rank0.json.gz ...",
        )
    Catalogue()
    _show(torch.of_ranks(paths), output or traces)


def _show(found: RanksProfile, folder: Path) -> None:
    from harness.cli.console import open_console
    from harness.profile import torch
    from harness.report import ranks_timeline, terminal

    terminal.show(ranks_timeline.page(found), open_console())
    for path in (*ranks_timeline.write(found, folder), torch.merge(found, folder)):
        typer.echo(path)
