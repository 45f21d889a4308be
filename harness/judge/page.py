"""A judgement as a page: text for a terminal, Markdown, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape

from harness import units
from harness.foreign import printable
from harness.judge.records import Calls, Judgement, Timed
from harness.metrics import ABOVE_CEILING

SCHEMA = 1
FORMATS = ("md", "json")
_Section = tuple[str, list[str]]


def text(judgement: Judgement) -> str:
    """The page as plain text: the verdict first."""
    lines = [judgement.line]
    for head, body in _sections(judgement):
        lines += ["", head, *(f"  {line}" for line in body)]
    return printable("\n".join(lines))


def markdown(judgement: Judgement) -> str:
    """The page as Markdown. What the candidate may have written stands as code."""
    lines = [f"# {_escaped(judgement.line)}"]
    for head, body in _sections(judgement):
        lines += ["", f"## {head}", "", *(f"- {_escaped(line)}" for line in body)]
    return printable("\n".join(lines) + "\n")


def as_json(judgement: Judgement) -> str:
    """The judgement as JSON: SI units, shares as fractions, null for what isn't known."""
    return json.dumps({"schema": SCHEMA, **asdict(judgement)}, indent=2)


def _escaped(line: str) -> str:
    """A line without what Markdown or HTML would obey."""
    for mark in "\\`*_[]#|":
        line = line.replace(mark, f"\\{mark}")
    return " ".join(escape(line, quote=False).split())


def _sections(judgement: Judgement) -> Iterator[_Section]:
    yield (
        "Judged",
        [
            f"candidate: {judgement.candidate}, SHA-256 {judgement.sha256[:12]}",
            *([f"form: {judgement.form}; reference: {judgement.reference}"] if judgement.form else []),
            *([f"machine: {judgement.machine}"] if judgement.machine else []),
            f"seed: {judgement.seed} (--seed {judgement.seed} draws the same sizes)",
            *judgement.notes,
        ],
    )
    if judgement.checked:
        yield "Checked", [*_checked(judgement)]
    for timed in judgement.timed:
        yield timed.case, [*_timed(timed)]
    if judgement.calls:
        yield "Calls of torch", [_calls(judgement.calls)]
    yield "Not promised", list(judgement.unpromised)


def _checked(judgement: Judgement) -> Iterator[str]:
    for one in judgement.checked:
        why = f": {one.why}" if one.why and one.status != "ok" else ""
        yield f"{one.status.replace('_', ' ')}  {one.case} ({one.sizes} sizes){why}"


def _timed(timed: Timed) -> Iterator[str]:
    if timed.time is None:
        yield f"{timed.status.replace('_', ' ')}: {timed.why}"
    else:
        bounds = f" [{units.seconds(timed.low)}, {units.seconds(timed.high)}]" if timed.low and timed.high else ""
        yield f"time: {units.seconds(timed.time)}{bounds}"
        yield f"of the ceiling: {_share(timed.of_ceiling)} (inputs and outputs, each moved once, on this machine)"
    for name, seconds in timed.baselines.items():
        over = f", {seconds / timed.time:.2f}x" if timed.time else ""
        yield f"torch, {name}: {units.seconds(seconds)}{over}{' (the fastest)' if name == timed.best else ''}"
    for name, why in timed.missing.items():
        yield f"torch, {name}: no time, {why}"
    if timed.reason:
        yield f"why not faster: {timed.reason}"
    for warning in timed.warnings:
        yield f"warning: {warning}"


def _share(of_ceiling: float | None) -> str:
    if of_ceiling is None:
        return "not known"
    if of_ceiling > ABOVE_CEILING:
        return "no share, since it is faster than the ceiling, which is wrong here: see the warning"
    return units.percent(of_ceiling)


def _calls(calls: Calls) -> str:
    if calls.others:
        return f"It calls operators of other libraries ({', '.join(calls.others)})."
    if calls.only_torch:
        return f"It has no kernel of its own: all that it computes are calls of torch ({', '.join(calls.torch)})."
    if calls.torch:
        return f"Besides its own kernels it calls torch: {', '.join(calls.torch)}."
    return "It computes nothing by calls of torch: its kernels are its own, or compiled."
