"""`harness judge`: whether a kernel is right, how fast it is, and whether one may believe it."""

from __future__ import annotations

import re
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import completion, options, values
from harness.cli.columns import flowing
from harness.cli.group import alone
from harness.cli.options import Device, MaxTime, Ops, Precision
from harness.errors import Exit, UsageError

if TYPE_CHECKING:
    from harness.judge import Judgement

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness judge mine.py --op softmax           a function or variant for an op\n"
    "  harness judge new.py --reference ref.py      KernelBench's form\n"
    "  harness judge submission.py                  GPU MODE's: task.yml beside it\n"
    "  harness judge k.json --op softmax --isolated kernels without Python\n"
    "\n\b\nExit codes:\n"
    "  0 right and believable, however fast it is\n"
    "  1 right, but slower than --at-least\n"
    "  2 the request can't be carried out\n"
    "  4 the machine can't give valid numbers\n"
    "  5 wrong, crashed, too slow to end, or faster than possible"
)
_SIZES = re.compile(r"\w+=\d+(,\w+=\d+)*")
_LONGEST_SEED = 2**31


@app.command("judge", epilog=EXAMPLES, short_help="Say whether a kernel is right, fast, and to be believed.")
def command(
    candidate: Annotated[Path, typer.Argument(metavar="CANDIDATE", help="Python file, or a manifest for --isolated.")],
    op: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The op that it is a candidate for.", autocompletion=completion.ops),
    ] = None,
    function: Annotated[
        str | None, typer.Option(metavar="NAME", help="The function, variant or class, if the file has several.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the reference, for forms that bring one.")
    ] = None,
    ops: Ops = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(metavar="M=1,N=2", help="Time it at these sizes, not at the form's own; may be repeated."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=_LONGEST_SEED - 1, metavar="N", help="Draws sizes. Default: at random.")
    ] = None,
    at_least: Annotated[
        str | None, typer.Option(metavar="RATIO", help="End with 1 if it is surely slower than torch, e.g. 1.0x.")
    ] = None,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Take kernels and launch parameters alone: none of its Python is timed.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
    max_time: MaxTime = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="A case, or a step before, that takes longer has failed.")
    ] = 300.0,
    format: Annotated[str | None, typer.Option(metavar="NAME", help="md or json, in place of plain text.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the page there, too.")] = None,
) -> None:
    """Say whether a kernel is right, how fast it is, and whether one may believe it.

    It is compared with a reference in higher precision, at sizes that it hasn't seen as well, and timed beside torch.
    Every timed call is checked. Nothing of it runs in the process that judges.
    """
    from harness import devices
    from harness.cli.console import open_console
    from harness.cli.progress import Lines
    from harness.judge import Asked, judge, page

    if format not in (None, *page.FORMATS):
        raise UsageError(f"--format {format} isn't known", f"allowed: {', '.join(page.FORMATS)}")
    if output and not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}", "make it, or name another file")
    if not candidate.is_file():
        what = "is no file" if candidate.exists() else "there is no such file"
        raise UsageError(f"{candidate}: {what}", "name a file with a candidate")
    asked = Asked(
        candidate=candidate,
        device=devices.choose(device),
        seed=secrets.randbelow(_LONGEST_SEED) if seed is None else seed,
        op=op or "",
        function=function or "",
        reference=reference,
        plugins=tuple(ops or ()),
        sizes=tuple(map(_sizes, sizes or ())),
        dtypes=values.names(dtype),
        timing=replace(options.timing(precision, max_time), timeout=timeout),
        isolated=isolated,
        at_least=None if at_least is None else _ratio(at_least),
    )
    try:
        judgement = judge(asked, ("harness", *sys.argv[1:]), Lines(open_console(err=True)))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _show(judgement, format, output)
    if judgement.code != Exit.OK:
        raise typer.Exit(judgement.code)


def _show(judgement: Judgement, form: str | None, output: Path | None) -> None:
    """Print the page; into a file it goes as its suffix says, unless a format is given.

    What took minutes to judge is printed where the file can't be written, and written where nobody reads the output.
    """
    from harness.judge import page
    from harness.report.placing import into

    writers = {"md": page.markdown, "json": page.as_json}
    printed = page.text if output else writers.get(form or "", page.text)
    text = printed(judgement).rstrip()
    try:
        typer.echo(flowing(text) if printed is page.text else text)
    finally:
        if output:
            suffix = form or output.suffix.removeprefix(".")
            with into(output.parent):
                output.write_text(f"{writers.get(suffix, page.text)(judgement).rstrip()}\n", encoding="utf-8")


def _sizes(text: str) -> dict[str, int]:
    if not _SIZES.fullmatch(text):
        raise UsageError(f"--sizes {text}: aren't sizes", "write them as in --sizes M=1024,N=4096")
    found = {name: int(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    if bad := next((name for name, value in found.items() if not 1 <= value < 2**63), None):
        raise UsageError(f"--sizes {text}: {bad} is {found[bad]}", "a size is 1 or more")
    return found


def _ratio(text: str) -> float:
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise UsageError(f"--at-least {text}: isn't a ratio", "write it as in --at-least 1.0x")
    return value
