"""A timeline as a page: what share of the time each family and kernel took, and why the device was idle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from harness import units
from harness.profile import torch
from harness.profile.torch import SHORT_GAP, Timeline
from harness.report.tree import Block, Cell, Column, Facts, Figure, Note, Page, Section, Table, Terms, text_column

NAME = "timeline.md"
FIGURE = "plots/timeline.svg"
_MOST_KERNELS = 20
_LONGEST_NAME = 60
_BUSY = "of busy time"
VIEWER = "https://ui.perfetto.dev"


def write(found: Timeline, trace: Path, folder: Path) -> list[Path]:
    """Write the page and its plot into `folder`, and give their paths. trace: the file that the page names."""
    return save(page(found, trace), found, folder)


def save(made: Page, found: Timeline, folder: Path) -> list[Path]:
    """Write a page with the plot of a timeline into `folder`, and give their paths."""
    from harness.report import timeline_plot
    from harness.report.formats import markdown

    (folder / FIGURE).parent.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_text(markdown.render(made), encoding="utf-8")
    return [path, *timeline_plot.draw(found, folder / FIGURE)]


def page(found: Timeline, trace: Path) -> Page:
    """The timeline for a page or a console, which shows no figures. trace: the file that it was read from."""
    return Page(
        "Timeline",
        (
            _summary(found),
            *_remedies(found),
            Section("By family", (_families(found), Figure(FIGURE, _alt(found)), *_meanings(found))),
            Section("By kernel" if found.on_gpu else "By operator", tuple(_kernels(found))),
            Section("Idle time", tuple(_idle(found))),
            Section("Trace", (Note(f"{trace.name} opens in {VIEWER}, which shows every kernel and gap."),)),
        ),
    )


def _summary(found: Timeline) -> Facts:
    if found.on_gpu:
        window = "from the first kernel's start to the last one's end"
        busy = [("busy", f"{_of(found.busy, found)}, in which a kernel ran")]
        waiting = [("idle, host at work", f"{_of(found.host, found)}, in which the host was still preparing work")]
    else:
        window = "from the first operator's start to the last one's end"
        busy = [("in operators", _of(found.busy, found))]
        waiting = []
    pairs = [
        ("device", units.plural(found.devices, "GPU") if found.on_gpu else "CPU, since the trace has no GPU's kernels"),
        ("window", f"{units.seconds(found.window)}, {window}"),
        *busy,
        ("idle" if found.on_gpu else "outside of operators", _of(found.idle, found)),
        *waiting,
        ("launches" if found.on_gpu else "calls", units.count(found.count)),
    ]
    return Facts(tuple(pairs))


def _remedies(found: Timeline) -> Iterator[Section]:
    """What to try first. Advice is text beside the table, since it is longer than a column."""
    told = torch.remedies(found)
    if not told:
        return
    bounds = tuple(one.seconds / found.time for one in told)
    table = Table(
        (text_column("what takes the time", [one.what for one in told]), Column("at most", bounds, units.SHARE))
    )
    note = Note("'At most' is the share of the time that it takes now: a bound, no forecast. Bounds overlap.")
    yield Section("What to try", (table, Terms(tuple((one.what, one.advice) for one in told)), note))


def _of(seconds: float, found: Timeline) -> str:
    share = seconds / found.time if found.time else 0.0
    return f"{units.percent(share)} ({units.seconds(seconds)})"


def _families(found: Timeline) -> Table:
    names = [*(torch.FAMILIES[family.name].title for family in found.families), "idle"]
    made = (
        text_column("family", names),
        Column("share", (*(family.share for family in found.families), found.idle_share), units.SHARE),
        Column(_BUSY, (*(_of_busy(family.share, found) for family in found.families), ""), units.SHARE, keep=4),
        Column("time", (*(units.seconds(family.seconds) for family in found.families), units.seconds(found.idle))),
        Column(_counted(found), (*(float(family.count) for family in found.families), ""), units.COUNT, keep=3),
    )
    return Table(tuple(column for column in made if not column.is_empty))


def _of_busy(share: float, found: Timeline) -> Cell:
    """A share of the window as a share of the time in which a kernel ran; nothing for operators of a CPU."""
    return share * found.time / found.busy if found.on_gpu and found.busy else ""


def _alt(found: Timeline) -> str:
    first = found.families[0]
    return (
        f"Share of the time by family: {torch.FAMILIES[first.name].title} {units.percent(first.share)}, "
        f"idle {units.percent(found.idle_share)}"
    )


def _meanings(found: Timeline) -> Iterator[Block]:
    """What belongs to the families, and what shares mean."""
    shown = [torch.FAMILIES[family.name] for family in found.families]
    yield Terms(tuple((family.title, family.hint) for family in shown))
    if found.on_gpu:
        yield Note(
            "Kernels that run at the same time share it, so that all shares and the idle share add up to 100%. The "
            f"times are sums of durations and may be more. The column '{_BUSY}' leaves the idle time out, as other "
            "profilers' summaries of kernels do."
        )
    else:
        yield Note("The time of an operator is its own, without the operators that it calls.")


def _counted(found: Timeline) -> str:
    return "launches" if found.on_gpu else "calls"


def _kernels(found: Timeline) -> Iterator[Block]:
    shown = found.kernels[:_MOST_KERNELS]
    yield Table(
        (
            text_column("kernel" if found.on_gpu else "operator", (short(kernel.name) for kernel in shown), code=True),
            text_column("family", (torch.FAMILIES[kernel.family].title for kernel in shown), keep=4),
            Column("share", tuple(kernel.share for kernel in shown), units.SHARE),
            Column("time", tuple(units.seconds(kernel.seconds) for kernel in shown)),
            Column(_counted(found), tuple(float(kernel.count) for kernel in shown), units.COUNT),
            Column("mean", tuple(units.seconds(kernel.seconds / kernel.count) for kernel in shown), keep=3),
        )
    )
    if rest := found.kernels[_MOST_KERNELS:]:
        share = sum(kernel.share for kernel in rest)
        noun = "kernel" if found.on_gpu else "operator"
        yield Note(f"{units.plural(len(rest), f'other {noun}')}: {units.percent(share)} together.")


def short(name: str) -> str:
    """The name of a kernel without its parameters and the namespaces of torch, cut to what fits in a table."""
    name = name.removeprefix("void ")
    for part in ("at::native::", "(anonymous namespace)::", "<unnamed>::"):
        name = name.replace(part, "")
    name = re.sub(r"(?<=>)\([^()]*(\([^()]*\)[^()]*)*\)$", "", name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _idle(found: Timeline) -> Iterator[Block]:
    limit = units.seconds(SHORT_GAP, 2)
    gaps = (found.short, found.long)
    yield Table(
        (
            text_column("gaps", (f"shorter than {limit}", f"{limit} and longer")),
            Column("count", tuple(float(gap.count) for gap in gaps), units.COUNT),
            Column("time", tuple(units.seconds(gap.seconds) for gap in gaps)),
            Column("share", tuple(gap.seconds / found.time if found.time else 0.0 for gap in gaps), units.SHARE),
        )
    )
    if not found.on_gpu:
        yield Note("Between operators the host runs Python, loads data, or waits.")
        return
    yield Note(
        "A short gap is about what the GPU needs from one kernel to the next. Fusing kernels and CUDA graphs remove "
        "such gaps. In a long gap the GPU had no work."
    )
    if found.idle:
        own, elsewhere = found.host / found.idle, 1 - found.host / found.idle
        yield Note(
            f"In {units.percent(own)} of the idle time the host was inside operators of torch or calls of the CUDA "
            "runtime: larger batches, fused operators, torch.compile and CUDA graphs help. In "
            f"{units.percent(elsewhere)} it was elsewhere: in Python, in loading data, or waiting."
        )
