"""A user's step as an op, and the plug-in and the scenario that `harness ladder` measures. This file needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from harness.collection.ops.collectives._collectives import twice_the_rest
from harness.collection.steps.ladder import _rungs
from harness.collection.steps.ladder._rungs import AUTOTUNE, LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.model import Case, Work
from harness.ops import ANY_DEVICE, Context, Launch, Op, Symbols, Tensors, Variant

DTYPES = ("bfloat16", "float16")
BASELINE = "float32"
_TEXT = (
    '"""Written by harness ladder: the training step of {source} as an op, with a variant for each rung."""\n\n'
    "from harness.collection.steps.ladder import op\n\n"
    "OP = op({arguments})\n"
)


def plugin(answer: Mapping[str, Any]) -> str:
    """The text of the plug-in that declares the op. answer: what `survey` gave."""
    known = asdict(_sheet(answer))
    arguments = "".join(f"\n    {name}={value!r}," for name, value in known.items())
    return _TEXT.format(source=Path(known["source"]).name, arguments=f"{arguments}\n")


def definition(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the scenario, but for its variants. answer: what `survey` gave."""
    sheet = _sheet(answer)
    source = Path(sheet.source).name if sheet.digest else sheet.source
    counts = sheet.patched.partition("\n")[0]
    return {
        "title": f"Training steps of {source}, rung by rung",
        "op": sheet.name,
        "shape": (("B", sheet.size),),
        "dtypes": DTYPES,
        "baseline": BASELINE,
        "shows": " ".join(
            (
                f"What each rung gains for this model. Our kernels in it, by harness.nn.patch: {counts}.",
                *(f"{text[:1].upper()}{text[1:]}." for text in sheet.warnings),
            )
        ),
        "source": source,
        # From these a report without the plug-in knows what the code of a rung begins with.
        "tags": ("ladder", *_rungs.tags(sheet)),
    }


def _sheet(answer: Mapping[str, Any]) -> StepSheet:
    known = json.loads(json.dumps(dict(answer)))
    lists = {name: tuple(known[name]) for name in ("gives", "called", "warnings")}
    return StepSheet(**{one.name: known[one.name] for one in fields(StepSheet)} | lists)


def op(**known: Any) -> Op:
    """The op of a step. known: the fields of its StepSheet."""
    sheet = StepSheet(**known)
    made = Op(
        sheet.name,
        f"a training step of {Path(sheet.source).name}, items a second",
        symbols={"B": "items of a step, on each device" if sheet.world > 1 else "items of a step"},
        dtypes=DTYPES,
        timer="steady",
        work=partial(_work, sheet),
        make=_make,
        check=_check,
        recheck=_recheck,
        pages="harness.collection.steps.ladder.report",
    )
    for rung in _rungs.of_sheet(sheet):
        _add(made, rung, sheet)
    return made


def _add(made: Op, rung: LadderRung, sheet: StepSheet) -> None:
    """Add a rung. A CPU has no CUDA graphs, no second stream, no TF32 and nothing to tune, and none of our kernels."""
    options: dict[str, Any] = {"role": rung.role, "arithmetic": rung.arithmetic, "devices": (ANY_DEVICE,)}
    options["unsupported"] = partial(_unsupported, rung, sheet)
    made.variant(rung.name, rung.summary, **options)(partial(_prepare, rung=rung, sheet=sheet))


def step_of(variant: Variant) -> tuple[LadderRung, StepSheet] | None:
    """The rung and the step that a variant of such an op is; None for other variants, a plug-in's too."""
    known = getattr(variant.prepare, "keywords", {})
    rung, sheet = known.get("rung"), known.get("sheet")
    return (rung, sheet) if isinstance(rung, LadderRung) and isinstance(sheet, StepSheet) else None


def _unsupported(rung: LadderRung, sheet: StepSheet, case: Case) -> str | None:
    if case.device == "cpu":
        needs = {
            "a CPU has no TF32": rung.name == "tf32",
            "a CPU has no CUDA graphs": rung.graph,
            "a CPU has no second stream": rung.streams,
            "a CPU has nothing to tune": rung.compiled == AUTOTUNE,
            "a CPU has one kernel of attention alone": bool(rung.attention),
        }
        if why := next((reason for reason, needed in needs.items() if needed), ""):
            return why
    return _rungs.why_not(rung, sheet, case.dtype, case.world) or None


def _work(sheet: StepSheet, symbols: Symbols, _itemsize: int) -> Work:
    """Operations are one device's; items are all devices'. In a ring each sends nearly twice the bytes of gradients."""
    flops, world = (("case", sheet.flops),) if sheet.flops else (), symbols["world"]
    sent = twice_the_rest(sheet.gradients, world) if world > 1 else 0
    return Work(flops=flops, sent=sent, items=world * symbols["B"], item="items")


# What follows loads torch where it runs.


def _make(ctx: Context) -> dict[str, Any]:
    from harness.collection.steps.training._steps import make

    return make(ctx)


def _prepare(ctx: Context, rung: LadderRung, sheet: StepSheet) -> Launch:
    from harness.collection.steps.ladder import _steps

    return _steps.prepare(ctx, rung, sheet)


def _check(ctx: Context, t: Tensors) -> Any:
    from harness.collection.steps.ladder import _steps

    return _steps.check(ctx, t)


def _recheck(ctx: Context, t: Tensors, call: Any) -> Any:
    from harness.collection.steps.ladder import _steps

    return _steps.recheck(ctx, t, call)
