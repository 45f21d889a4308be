"""Write the figures of the pages in PAGES from the committed runs. Run it after a change of a page or of a run.

A page has marks, HTML comments that a reader doesn't see:

    <!-- table NAME -->                   the lines up to the end mark are what the function TABLES[NAME] gives
    <!-- figure CASES METRIC -->          a metric of the cases that the glob CASES matches: one value, or 'low to high'
    <!-- figure CASES METRIC OVER -->     the same of a metric that compares with the variant OVER
    <!-- screen RUN COMMAND -->           COMMAND, and the table that it printed when it measured the run RUN
    <!-- command COMMAND -->              COMMAND, and what it prints here
    <!-- end -->

committed.py says which run a case is taken from. With --check nothing is written; the exit code is 1 if a page is old.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence

from committed import ABSENT, MODES, NOTHING, OURS, ROOT, Group, Runs
from peer_tables import peers
from screens import SCREENS
from step_tables import inference, steps, swin_text, train_host, training
from tables import KERNELS, SAME, bold_best, origin, table

from harness.units import percent, ratio

NAMES = ("README.md", "kernels/README.md", "reports/README.md", "reports/training.md", "reports/scaling.md")
PAGES = tuple(ROOT / name for name in NAMES)
MARK = re.compile(r"<!-- (table|figure|screen|command) ([^\n]*?) -->(.*?)<!-- end -->", re.DOTALL)
REFUSED = "A dash: torch's own result was refused by the check, so it has no time."
TOO_LONG = "A dash: the variant has no kernel for rows of this length."
LARGE = 100e6
"""Bytes of work from which on a time says more about the kernel than about its launch."""
WASTEFUL = {"strided_copy"}
"""Ops whose ceiling no kernel can reach: the bytes between their elements are moved, too."""


# ---- Tables.


def prelu(runs: Runs) -> list[str]:
    """PReLU in float16: bandwidth by variant."""
    settings = [f"N{n}-C{c}-H{h}-W{h}" for n, c, h in (
        (96, 64, 112), (128, 64, 112), (128, 128, 56), (128, 256, 28), (128, 512, 14), (128, 512, 7), (2**27, 1, 1),
    )]  # fmt: skip
    groups = [runs.group("prelu", "float16", setting) for setting in settings]
    variants = ("eager", "compile", "naive", "packed", OURS)

    def rows() -> Iterator[list[str]]:
        for setting, group in zip(settings, groups, strict=True):
            names = [group.compiled if name == "compile" else name for name in variants]
            values = [group.value(name, "bandwidth") for name in names]
            cells = bold_best([group.written(name, "bandwidth") for name in names], values)
            yield [setting, *cells, group.mode, group.written(OURS, "of_ceiling")]

    head = ("shape", "eager", "compile", "naive", "packed", "tuned", "mode of compile", "tuned, of ceiling")
    peak = groups[0].run.limits and groups[0].run.limits.peak
    copy = f" The best `cudaMemcpy` there reached {peak * 1e-9:.0f} GB/s." if peak else ""
    return [*table(head, rows()), "", origin(groups) + copy]


def _rows_of(n: int) -> str:
    return f"M{2**27 // n}-N{n}"


OPS = (
    ("`relu_mask` (2)", "relu_mask", "N134217728"),
    ("`relu_grad`", "relu_grad", "N134217728"),
    ("`relu_training`", "relu_training", "N134217728"),
    ("`dropout` (1)", "dropout", "N134217728/p=0.1"),
    ("`dropout_grad` (1)", "dropout_grad", "N134217728/p=0.1"),
    ("`dropout_add` (1)", "dropout_add", "N134217728/p=0.1"),
    ("`bias_dropout_residual` (1)", "bias_dropout_residual", "R131072-C1024/p=0.1"),
    ("`bias_add`, inner 1", "bias_add", "outer131072-bias1024-inner1"),
    ("`bias_add`, inner 16384", "bias_add", "outer128-bias64-inner16384"),
    ("`bias_residual`", "bias_residual", "R131072-C1024"),
    ("`two_biases`", "two_biases", "R131072-C1024"),
    ("`prelu_grad`, 56 x 56", "prelu_grad", "N336-C128-H56-W56"),
    ("`prelu_grad`, 7 x 7", "prelu_grad", "N5376-C512-H7-W7"),
    *((f"`{op}`, N = {n}", op, _rows_of(n)) for op, sizes in (
        ("softmax", (1024, 131072)), ("softmax_grad", (1024, 131072)), ("layer_norm", (1024, 65536)),
        ("layer_norm_grad", (49, 1024, 16384)), ("rms_norm", (1024,)), ("rms_norm_grad", (49, 1024)),
    ) for n in sizes),
    *((f"`{op}`, {label}", op, setting) for op in ("bn_add_relu", "bn_add_relu_grad") for label, setting in (
        ("56 x 56", "N656-C64-H56-W56/layout=nchw"), ("56 x 56, channels last", "N656-C64-H56-W56/layout=nhwc"),
        ("7 x 7", "N5376-C512-H7-W7/layout=nchw"),
    )),
)  # fmt: skip
TYPES = ("float32", "float16", "bfloat16")


def ops(runs: Runs) -> list[str]:
    """`tuned` of each op against torch, in float32 and float16."""
    every: list[Group] = []

    def rows() -> Iterator[list[str]]:
        for label, op, setting in OPS:
            pair = [runs.group(op, dtype, setting) for dtype in TYPES[:2]]
            every.extend(pair)
            yield [
                label,
                " / ".join(group.written(OURS, "time") for group in pair),
                " / ".join(group.written(OURS, "of_ceiling") for group in pair),
                " / ".join(group.written(OURS, "speedup", "eager") for group in pair),
                " / ".join(group.written(OURS, "speedup", group.compiled) for group in pair),
                " / ".join(dict.fromkeys(group.mode for group in pair)),
            ]

    lines = table(("op", "time (us)", "of ceiling", "over eager", "over compile", "mode of compile"), rows())
    return [*lines, "", " ".join([*_of_dashes(lines), origin(every)])]


SWIN = "W8192-H4-T49-D32-G64/bias=yes,mask=shift"
OF_MODELS = (
    ("unscale", "float16", "T0-N0/tensors=bert_base"),
    ("adamw", "float32", "T0-N0/tensors=bert_base,weight_decay=0.01,master=none"),
    ("transpose", "float16", "M8192-N8192"),
    ("transpose", "float16", "M8191-N8193"),
    ("permute", "float16", "B256-S384-H16-D64"),
    ("nchw_to_nhwc", "float16", "N256-C64-H112-W112/direction=to_nhwc"),
    ("window_partition", "float16", "B256-H56-W56-C96-window7-shift3/direction=forward"),
    ("layer_norm_window_partition", "float16", "B256-H56-W56-C96-window7-shift3"),
    ("window_attention", "float16", SWIN),
    ("window_attention_packed", "float16", "W8192-H4-side7-D32-G64/mask=shift"),
    ("window_attention_grad", "float16", SWIN),
    ("linear_bias", "float16", "M401408-K128-N384"),
    ("linear_bias", "float16", "M25088-K512-N1536"),
    ("int8_linear", "float16", "M401408-K128-N384/scales=tensor,data=normal"),
    ("int8_linear", "float16", "M25088-K512-N1536/scales=tensor,data=normal"),
    *((op, "float16", "M131072-C1024/scales=channel") for op in (
        "quantize", "dequantize_bias", "dequantize_bias_residual", "dequantize_bias_gelu_quantize",
        "dequantize_bias_residual_layer_norm_quantize",
    )),
)  # fmt: skip
OTHERS = ("sdpa_efficient", "sdpa_cudnn", "flex", "float16")
"""What users have beside eager and torch.compile: other kernels of torch, and a product in halves for one in int8."""


def models(runs: Runs) -> list[str]:
    """`tuned` of ops at the shapes of models against what torch offers."""
    groups = [runs.group(*case) for case in OF_MODELS]

    def rows() -> Iterator[list[str]]:
        for (op, dtype, setting), group in zip(OF_MODELS, groups, strict=True):
            times = {name: time for name in OTHERS if (time := group.value(name, "time"))}
            other = min(times, key=lambda name: times[name], default=None)
            yield [
                f"`{op}`",
                f"{setting.replace('T0-N0/', '')} {dtype}",
                group.written(OURS, "time"),
                group.written(OURS, "of_ceiling"),
                group.written(OURS, "speedup", "eager"),
                group.written(OURS, "speedup", group.compiled),
                f"{group.written(OURS, 'speedup', other)} {other}" if other else "",
            ]

    head = ("op", "case", "time (us)", "of ceiling", "over eager", "over compile", "over torch's other kernel")
    return [*table(head, rows(), 2), "", origin(groups)]


def in_short(runs: Runs) -> list[str]:
    """What the tables of ops and of models say together, but for rows in which torch does other work."""
    cases = [(op, dtype, setting) for label, op, setting in OPS for dtype in TYPES[:2] if not label.endswith(")")]
    groups = [runs.group(*case) for case in (*cases, *OF_MODELS)]
    gains = {group.name: gain for group in groups if (gain := _over_torch(group))}
    slower = sorted((gain, name) for name, gain in gains.items() if gain < 1 - SAME)
    same = sum(abs(gain - 1) <= SAME for gain in gains.values())
    over_eager = [gain for group in groups if (gain := group.value(OURS, "speedup", "eager"))]
    over_compile = [gain for group in groups if (gain := group.value(OURS, "speedup", group.compiled))]
    means = (ratio(statistics.geometric_mean(every)) for every in (over_eager, over_compile))
    shares = {group.name: share for group in groups if (share := group.value(OURS, "of_ceiling"))}
    lowest = min(shares, key=lambda name: shares[name])
    faster = len(gains) - same - len(slower)
    listed = ", ".join(f"`{name}` {ratio(gain)}" for gain, name in slower)
    told = (
        f"`tuned`, the fastest kernel of this repository, is faster than the fastest variant of torch in {faster} of "
        f"{len(gains)} cases of the tables of ops, within {percent(SAME, 0)} in {same}, and slower in {len(slower)}: "
        f"{listed}. The geometric mean of the speed-ups is {' over eager, '.join(means)} over torch.compile. Half of "
        f"these cases reach {percent(statistics.median(shares.values()))} of the ceiling or more; the lowest share is "
        f"{percent(shares[lowest])}, of `{lowest}`."
    )
    return textwrap.wrap(told, 120, break_on_hyphens=False)


def _over_torch(group: Group) -> float | None:
    """The time of the fastest variant of torch that computes the same, over the time of ours; None without both."""
    known = (group.value(OURS, "speedup", name) for name in ("eager", *MODES, *OTHERS) if name != "float16")
    return min(filter(None, known), default=None)


def _of_dashes(lines: Sequence[str]) -> list[str]:
    """What a dash means, where a table has one."""
    return [REFUSED] if any(NOTHING in line.split() for line in lines[2:]) else []


SIZES = (1, 3, 16, 49, 64, 197, 256, 1000, 1023, 1024, 4096, 8192, 16384, 30522, 32768, 50257, 65536, 128256, 131072,
         262144)  # fmt: skip
ROW_OPS = ("softmax", "softmax_grad", "layer_norm", "layer_norm_grad", "rms_norm", "rms_norm_grad")


def softmax(runs: Runs) -> list[str]:
    """Softmax in float32: the share of the ceiling by variant and length of a row."""
    groups = [runs.group("softmax", "float32", _rows_of(n)) for n in SIZES]
    variants = ("eager", "compile", "unfused", "online", "shared", "registers", "cluster", OURS)

    def rows() -> Iterator[list[str]]:
        for n, group in zip(SIZES, groups, strict=True):
            names = [group.compiled if name == "compile" else name for name in variants]
            values = [group.value(name, "of_ceiling") for name in names]
            yield [str(n), *bold_best([group.written(name, "of_ceiling") for name in names], values)]

    return [*table(("N", *variants), rows(), 0), "", f"{TOO_LONG} {origin(groups, KERNELS)}"]


def norms(runs: Runs) -> list[str]:
    """LayerNorm and its gradient in float32 and float16: the share of the ceiling by length of a row."""
    every: list[Group] = []

    def rows() -> Iterator[list[str]]:
        for n in SIZES:
            cells: list[str] = []
            for op in ("layer_norm", "layer_norm_grad"):
                pair = [runs.group(op, dtype, _rows_of(n)) for dtype in TYPES[:2]]
                every.extend(pair)
                with_eager = [runs.newest_with("eager", group) for group in pair]
                every.extend(with_eager)
                parts = [_shares(*groups) for groups in zip(pair, with_eager, strict=True)]
                cells += [" / ".join(column) for column in zip(*parts, strict=True)]
            yield [str(n), *cells]

    head = ("N", "eager", "compile", "tuned", "gradient: eager", "compile", "tuned")
    lines = table(head, rows(), 0)
    return [*lines, "", " ".join([*_of_dashes(lines), origin(every, KERNELS)])]


def _shares(group: Group, with_eager: Group) -> list[str]:
    """The share of the ceiling of eager, of the faster mode of torch.compile, and of ours."""
    of = (with_eager, "eager"), (group, group.compiled), (group, OURS)
    values = [run.value(name, "of_ceiling") for run, name in of]
    return bold_best([run.written(name, "of_ceiling") for run, name in of], values)


def rows(runs: Runs) -> list[str]:
    """`tuned` of all ops on rows, in all types."""
    every: list[Group] = []

    def lines() -> Iterator[list[str]]:
        for n in SIZES:
            cells: list[str] = []
            for op in ROW_OPS:
                groups = [runs.groups.get(f"{op}/{dtype}/{_rows_of(n)}") for dtype in TYPES]
                every.extend(group for group in groups if group)
                cells.append(" / ".join(g.written(OURS, "of_ceiling").rstrip("%") if g else ABSENT for g in groups))
            yield [str(n), *cells]

    return [*table(("N", *(f"`{op}`" for op in ROW_OPS)), lines(), 0), "", origin(every, KERNELS)]


def worst(runs: Runs) -> list[str]:
    """The lowest share of the ceiling of `tuned`, by op and type."""
    lowest: dict[tuple[str, str], tuple[float, Group]] = {}
    for group in runs.groups.values():
        share = group.value(OURS, "of_ceiling")
        if share and (group.value(OURS, "read_bytes") or 0) + (group.value(OURS, "written_bytes") or 0) >= LARGE:
            op, dtype, _ = group.name.split("/", 2)
            lowest[op, dtype] = min(lowest.get((op, dtype), (share, group)), (share, group), key=lambda found: found[0])
    names = sorted({op for op, dtype in lowest if dtype in TYPES} - WASTEFUL)

    def lines() -> Iterator[list[str]]:
        for op in names:
            own = [lowest.get((op, dtype)) for dtype in TYPES]
            yield [f"`{op}`", *(f"{percent(f[0])} at {f[1].name.split('/', 2)[2]}" if f else "" for f in own)]

    last = origin([group for (op, _), (_, group) in lowest.items() if op in names], KERNELS)
    return [*table(("op", *TYPES), lines(), len(TYPES) + 1), "", last]


def slower(runs: Runs) -> list[str]:
    """Every case in which torch is faster than `tuned`."""
    found: list[tuple[float, str, Group]] = []
    for group in runs.groups.values():
        ratios = [(group.value(OURS, "speedup", name), name) for name in ("eager", *MODES)]
        least = min(((value, name) for value, name in ratios if value), default=None)
        if least and least[0] < 1 - SAME:
            found.append((*least, group))
    found.sort(key=lambda one: one[0])

    def lines() -> Iterator[list[str]]:
        for _, name, group in found:
            faster = f"torch.compile, {MODES[name]}" if name in MODES else name
            times = group.written(OURS, "time"), group.written(name, "time")
            yield [f"`{group.name}`", *times, group.written(name, "speedup", OURS), faster]

    head = ("case", "tuned (us)", "torch (us)", "torch is faster by", "which")
    return [*table(head, lines()), "", origin([group for *_, group in found], KERNELS)]


TABLES: dict[str, Callable[[Runs], list[str]]] = {
    function.__name__: function
    for function in (
        *(
            prelu,
            ops,
            models,
            in_short,
            training,
            train_host,
            swin_text,
            steps,
            inference,
            softmax,
            norms,
            rows,
            worst,
            slower,
            peers,
        ),
    )
}


# ---- Pages.


def written(text: str, runs: Runs) -> str:
    """The page with each mark's content as the runs have it. Raises SystemExit for a mark that means nothing."""

    def content(mark: re.Match[str]) -> str:
        kind, about = mark[1], mark[2].split()
        if "<!--" in mark[3]:  # else all up to another mark's end would be written over
            raise SystemExit(f"the mark '{kind} {mark[2]}' has no end")
        if kind == "table" and about[0] in TABLES:
            lines = TABLES[about[0]](runs)
        elif kind in SCREENS:
            lines = SCREENS[kind](mark[2])
        elif kind == "figure" and len(about) in (2, 3):
            return f"<!-- {kind} {mark[2]} -->{runs.figure(*about)}<!-- end -->"
        else:
            raise SystemExit(f"no mark is '{kind} {mark[2]}'; tables: {', '.join(TABLES)}")
        return "\n".join([f"<!-- {kind} {mark[2]} -->", "", *lines, "", "<!-- end -->"])

    return MARK.sub(content, text)


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check say which of them isn't as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    check = parser.parse_args(arguments).check
    runs, stale = Runs(), []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = written(before, runs)
        if after != before:
            stale.append(page)
            if not check:
                page.write_text(after, encoding="utf-8")
    for page in stale:
        told = "differs from the runs; run scripts/make_tables.py" if check else "written"
        print(f"{page.relative_to(ROOT)}: {told}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
