"""What is asked of longer trainings, and what they leave in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.collection.steps.training._curves import TrainingCurve

SUFFIX = ".losses.json"


@dataclass(frozen=True, slots=True)
class CaseCurves:
    """What the trainings of a case gave, one for each seed. steps: of each. size: of a batch."""

    case: str
    steps: int
    size: int
    curves: tuple[TrainingCurve, ...]


@dataclass(frozen=True, slots=True)
class LossPlan:
    """How long the model of each case is trained, and from how many seeds.

    size: of a batch, in the place of the case's. files: the beginning of the names of the files that have the losses.
    """

    steps: int
    seeds: int
    size: int
    files: Path


def file_of(base: Path, number: int) -> Path:
    """The file with the losses of a case. number: the case's, counted from 1."""
    return base.with_name(f"{base.name}-{number}{SUFFIX}")
