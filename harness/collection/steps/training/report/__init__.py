"""What a report says of steps of training beside their table: the ladder, families of kernels, losses of trainings.

The instrument finds it by `Op.pages`, and reads it as `harness.report.sections` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from harness.collection.steps.training.report import drawing, losses, rungs
from harness.report.frame import Line
from harness.report.sections import figure
from harness.report.tree import Block, Figure, Note, Section

ELSEWHERE = ("losses.", "torch.family_", "torch.batched")
"""Figures of tools that the sections show."""


def sections(lines: Sequence[Line]) -> Iterator[Section]:
    """The sections of one scenario: its rungs, and what longer trainings gave, as far as there are some."""
    climbed: list[Block] = []
    for group in rungs.groups(lines):
        climbed += _of_rungs(group)
        climbed += rungs.tables(group)
    if climbed:
        yield Section("Rungs", tuple(climbed))
    if learned := [block for group in losses.groups(lines) for block in (_of_losses(group), *losses.blocks(group))]:
        yield Section("Losses", tuple(learned))


def verdicts(lines: Sequence[Line]) -> Iterator[Note]:
    """What a console says of the losses of one scenario."""
    for group in losses.groups(lines):
        yield from losses.verdicts(group)


def _of_rungs(group: rungs.RungGroup) -> Iterator[Figure]:
    """The ladder of rungs that have items, and the families of the traced rungs."""
    scenario, named = group.lines[0].scenario.name, group.setting
    if len(group.lines) > 1 and all(line.values["items"] for line in group.lines):
        claims = ", with the speed-ups that a text claims" if group.claimed else ""
        alt = f"{group.op}, {named}: {group.item} a second, rung by rung{claims}"
        yield figure(alt, partial(drawing.ladder, group), scenario, named, "ladder")
    if group.parts:
        alt = f"{group.op}, {named}: the time of a step by family of kernels, rung by rung"
        yield figure(alt, partial(drawing.families, group), scenario, named, "families")


def _of_losses(group: losses.LossGroup) -> Figure:
    case = group.baseline.line.case
    alt = f"{case.op}, {group.setting}: losses of each rung over the steps, with the range of the baseline's seeds"
    setting = case.group.partition("/")[2]
    return figure(alt, partial(drawing.losses, group), group.baseline.line.scenario.name, setting, "losses")
