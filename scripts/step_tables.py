"""The tables of reports/training.md: training steps rung by rung, what their text claims, and inference."""

from __future__ import annotations

from collections.abc import Iterator

from committed import ABSENT, NOTHING, Group, Runs
from tables import origin, table

from harness.metrics import METRICS
from harness.ops import Catalogue

RUNGS = ("float32", "tf32", "amp", "fused_optimizer", "half_norm", "sdpa", "sdpa_graph", "compile", "compile_graph",
         "compile_half_norm_graph", "fused_norm_adam", "windows", "attention", "graph", "streams", "half",
         "compile_ours", "compile_ours_graph", "compile_attention_graph")  # fmt: skip
FACTS = ("items", "device_busy", "peak_memory", "energy")


def training(runs: Runs) -> list[str]:
    """The ladder of Swin-T's training step."""
    group = runs.group("swin_train", "float16", "B128/model=swin_tiny")
    best = max(RUNGS, key=lambda name: group.value(name, "items") or 0)
    variants = Catalogue()["swin_train"].variants

    def rows() -> Iterator[list[str]]:
        for name in RUNGS:
            time = group.value(name, "time")
            cells = [f"{time * 1e3:.1f}" if time else NOTHING, *(group.written(name, fact) for fact in FACTS)]
            who = "ours" if variants[name].role == "ours" else "torch"
            yield [f"`{name}`", who, *([f"**{cells[0]}**", *cells[1:]] if name == best else cells)]

    head = ("rung", "kernels", "step (ms)", "images/s", "GPU busy", "peak memory", "J an image")
    return [*table(head, rows(), 2), "", origin([group])]


ON_HOST = ("fused_optimizer", "half_norm", "sdpa", "compile", "fused_norm_adam", "windows", "attention", "compile_ours")


def train_host(runs: Runs) -> list[str]:
    """What a step of so few images takes that it waits for the host."""
    group = runs.group("swin_train", "float16", "B8/model=swin_tiny")
    variants = Catalogue()["swin_train"].variants

    def lines() -> Iterator[list[str]]:
        for name in ON_HOST:
            time = group.value(name, "time")
            who = "ours" if variants[name].role == "ours" else "torch"
            cells = f"{time * 1e3:.1f}" if time else NOTHING, group.written(name, "noise")
            yield [f"`{name}`", who, *cells, group.written(name, "device_busy")]

    return [*table(("rung", "kernels", "step (ms)", "noise", "GPU busy"), lines(), 2), "", origin([group])]


SWINS = {"Swin-T": "B128/model=swin_tiny", "Swin-L": "B64/model=swin_large"}


def swin_text(runs: Runs) -> list[str]:
    """The speed-ups that Swin Transformer's text claims of its rungs, beside the measured ones, without and as graphs.

    Each is over the rung that the text compares with, both as graphs or both without. A cell is empty where no run has
    both, and a column without a figure isn't there.
    """
    groups = {name: runs.group("swin_train", "float16", setting) for name, setting in SWINS.items()}
    graphs = [runs.found("swin_train", "float16", f"{setting},step=graph") for setting in SWINS.values()]
    scenario = next(one for one in groups["Swin-L"].run.header.scenarios if one.op == "swin_train")
    claims = [claim for claim in scenario.claims if claim.metric == "speedup" and claim.value]

    def lines() -> Iterator[list[str]]:
        for claim in claims:
            own, base = claim.variant, claim.over
            cells = [METRICS["speedup"].written(claim.value or 0.0)]
            for group in groups.values():
                cells += [_known(group, own, "speedup", base), _known(group, own, "device_busy")]
            cells += [_known(group, own, "speedup", base) for group in graphs]
            yield [claim.row, f"`{own}` over `{base}`", *cells]

    busy = (head for name in SWINS for head in (name, "GPU busy"))
    head = ("row", "rung", "the text", *busy, *(f"{name}, both as graphs" for name in SWINS))
    columns = [column for column in zip(head, *lines(), strict=True) if any(column[1:])]
    shown = [list(row) for row in zip(*columns, strict=True)]
    return [*table(shown[0], iter(shown[1:]), 2), "", origin([*groups.values(), *filter(None, graphs)])]


def _known(group: Group | None, variant: str, metric: str, over: str = "") -> str:
    """A metric of a variant as text; '' where there is no run, or where it lacks one of the variants."""
    found = group.written(variant, metric, over) if group else NOTHING
    return "" if found in (ABSENT, NOTHING) else found


STEPS = {
    "Swin-L, 64": ("swin_train", "B64/model=swin_large"),
    "BERT, 512": ("bert_train", "B512/model=bert_base"),
    "BERT, 32": ("bert_train", "B32/model=bert_base"),
    "ResNet-50, 256": ("resnet50_train", "B256/model=resnet50,layout=nhwc"),
    "ResNet-50, 32": ("resnet50_train", "B32/model=resnet50,layout=nhwc"),
}
RUNGS_OF_RESNET = ("fused_optimizer_graph", "fused_norm")


def steps(runs: Runs) -> list[str]:
    """Milliseconds of a step of the other models, by rung."""
    groups = [runs.group(op, "float16", shape) for op, shape in STEPS.values()]
    times = {name: [one.value(name, "time") for one in groups] for name in (*RUNGS, *RUNGS_OF_RESNET)}
    rows = ([f"`{n}`", *(f"{t * 1e3:.1f}" if t else "" for t in cells)] for n, cells in times.items() if any(cells))
    return [*table(("step (ms)", *STEPS), rows), "", origin(groups)]


def inference(runs: Runs) -> list[str]:
    """Swin-T's inference in halves: time and gain over eager by batch."""
    sizes = (1, 32, 128)
    groups = [runs.group("swin_infer", "float16", f"B{size}/model=swin_tiny") for size in sizes]
    names = ("eager", "sdpa_graph", "compile", "compile_graph", "graph_exact", "graph", "int8_graph")

    def rows() -> Iterator[list[str]]:
        for name in names:
            cells = [f"{one.written(name, 'time')} ({one.written(name, 'speedup', 'eager')})" for one in groups]
            yield [f"`{name}`", *cells, groups[-1].written(name, "snr")]

    head = ("variant", *(f"us, batch {size} (over eager)" for size in sizes), "signal to noise")
    return [*table(head, rows()), "", origin(groups)]
