"""Options that several commands have, each declared once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion, values
from harness.errors import UsageError

if TYPE_CHECKING:
    from harness.gate import Request
    from harness.gate.records import Waiver
    from harness.model import Timing

USUAL_MARGIN = 0.01

Device = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Kind of device to measure on, as 'harness list devices' names it. Default: the first one that works.",
        autocompletion=completion.devices,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Only cases whose id matches, e.g. '*/float16/*'; may be repeated."),
]
Ops = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Python file with more ops; may be repeated.")]
Precision = Annotated[
    float | None,
    typer.Option(
        parser=values.share,
        metavar="SHARE",
        help="Sample until the 95% interval of the median is this narrow, e.g. 0.2%. Default: as the scenario says; "
        "the gate takes 0.3% or more.",
    ),
]
MaxTime = Annotated[
    float | None,
    typer.Option(
        parser=values.seconds,
        metavar="SECONDS",
        help="Sample a case for no longer than this. Default: as the scenario says; the gate takes 0.5 s or less.",
    ),
]
Margin = Annotated[
    float | None,
    typer.Option(parser=values.share, metavar="SHARE", help="Loss of speed that passes. Default: 1%."),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=-(2**63),
        max=2**63 - 1,
        metavar="N",
        help="Decides the order within each pair. Default: drawn at random, and recorded.",
    ),
]
NoiseFile = Annotated[
    Path | None,
    typer.Option("--noise", metavar="FILE", help="Noise file. Default: one in the cache folder."),
]
Prepare = Annotated[
    list[str] | None,
    typer.Option(
        metavar="CMD",
        help="Command that installs the packages of each side, e.g. 'pip install --no-deps --target {site} {root}': "
        "{site} is a folder of that side's packages, {root} its code. May be repeated.",
    ),
]


def timing(precision: float | None, max_time: float | None) -> Timing:
    """How long to sample, where no scenario says so: by these options, or else as usual."""
    from harness.model import Timing

    usual = Timing()
    return Timing(precision or usual.precision, max_time or usual.max_time)


def gate_request(
    base: str,
    scenarios: Sequence[str],
    *,
    device: str | None,
    only: Sequence[str] | None,
    ops: Sequence[Path] | None,
    precision: float | None,
    max_time: float | None,
    margin: float | None,
    seed: int | None,
    noise: Path | None,
    advisory: bool = False,
    accept: Sequence[str] = (),
    prepare: Sequence[str] | None = None,
    harness: str | None = None,
    always: bool = False,
    pairs: int | None = None,
    resume: Path | None = None,
    waivers: Path | None = None,
) -> Request:
    """The gate's request, from these options. Raises UsageError for scenarios and a device that don't exist."""
    from harness import devices, scenario
    from harness.gate import Request, resuming

    if missing := [file for file in ops or () if not file.is_file()]:
        raise UsageError(
            f"--ops {missing[0]}: {'a folder, and no file' if missing[0].is_dir() else 'no such file'}",
            "name the file as it is called now; if its ops should go, so should the command that gates them",
        )
    files = tuple(scenario.find(scenarios))
    waivers_in, holding = known_waivers(waivers, tuple(ops or ()), files)
    asked = USUAL_MARGIN if margin is None else margin
    kind = devices.choose(device)
    selection = scenario.Selection(device=kind, only=tuple(only or ()), precision=precision, max_time=max_time)
    return Request(
        base=base,
        files=files,
        selection=selection,
        plugins=tuple(ops or ()),
        folders=tuple(path for path in map(Path, scenarios) if path.is_dir()),
        accept=tuple(accept),
        margin=asked,
        seed=seed,
        noise=noise,
        advisory=advisory,
        command=("harness", *sys.argv[1:]),
        prepare=tuple(prepare or ()),
        harness=harness,
        always=always,
        pairs=pairs,
        earlier=resuming.load(resume, asked, holding) if resume else None,
        waivers=holding,
        waivers_in=waivers_in,
    )


def known_waivers(
    file: Path | None, ops: tuple[Path, ...] = (), scenarios: tuple[Path, ...] = ()
) -> tuple[Path | None, tuple[Waiver, ...]]:
    """The file and its waivers; without one, the file at the top of the repository that is gated, if it has one."""
    from harness.gate import waiver_file
    from harness.gate.worktree import Repository

    if file is not None:
        return file, waiver_file.load(file)
    if not scenarios:
        return None, ()
    usual = Repository.find(ops, scenarios).top / waiver_file.NAME
    return (usual, waiver_file.load(usual, waiver_file.NAME)) if usual.is_file() else (None, ())
