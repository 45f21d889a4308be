"""Losses of longer trainings: whether a rung of a ladder learns as the other rungs do. It needs no tool but torch.

Each case of a training op is trained from several seeds, on data that can be learned, with batches of a size of their
own. Of the case, its model, dtype, choices and variant count. A user's step (`harness ladder`) is trained on a few
batches that its file gives; a case of several devices is trained on all of them, each with batches of its own.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.collection.steps.training.profile.files import SUFFIX, CaseCurves, LossPlan, file_of
from harness.errors import MachineError, UsageError
from harness.model import Attachment, Job
from harness.profile import RunCase, ToolOption
from harness.ranks import ALONE, Group
from harness.store import parse

if TYPE_CHECKING:
    from harness.devices import Device
    from harness.ops import Catalogue

SUMMARY = "the losses of a few hundred steps of training, from several seeds"
OPTIONS = (
    ToolOption("steps", "steps of a training", 300, least=10),
    ToolOption("seeds", "trainings of a case", 5),
    ToolOption("batch", "size of a batch", 16),
)
EXAMPLES = ("--run reports/mine --only '*swin_tiny*' --batch 8",)
A_FILE_A_CASE = ANY_MACHINE = VERDICTS = RANKS = True
SUFFIXES = (SUFFIX,)
POINTS = 60
"""The most points of a stored curve, each the mean of steps that follow each other."""
_DIGITS = 5
"""Decimals of a stored loss."""


def running(  # noqa: PLR0913, PLR0917 - as harness.profile.Ways says
    jobs: Sequence[Job],
    options: Mapping[str, int],
    files: Path,
    catalogue: Catalogue,
    device: Device,
    group: Group = ALONE,
) -> AbstractContextManager[RunCase]:
    """A function that trains the case of a number from all seeds, and writes the file that `file_of` names.

    group: the ranks of cases of several devices, all of which call the function.
    """
    from harness.collection.steps.training.profile import trainings

    plan = LossPlan(options["steps"], options["seeds"], options["batch"], files)
    return trainings.started([job.case for job in jobs], plan, catalogue, device, group)


def refuse() -> None:
    """Raise MachineError if torch is missing."""
    if importlib.util.find_spec("torch") is None:
        raise MachineError("torch isn't installed, and models are trained with it", "pip install torch")


def commands(target: Sequence[str], base: Path) -> list[list[str]]:  # noqa: ARG001 - the request names the files
    """The target itself, which trains each case, and writes the file that `file_of` names."""
    return [[*target]]


def failure(output: str) -> MachineError | None:  # noqa: ARG001 - there is no other program that could complain
    """Nothing is known of it: what goes wrong in a training is the case's error."""
    return None


def read(base: Path, cases: Sequence[str], calls: int) -> list[Attachment]:  # noqa: ARG001 - no case is called
    """One attachment a case.

    Values: steps and size (of a batch) of each training, seeds (how many trainings), loss (the mean of all steps and
    seeds), last (the same of the last sixth of the steps). Series: `losses_<n>`, the losses of the n-th seed, as means
    of steps that follow each other; `means` and `loss`, the mean loss of each seed; `forced`, the steps that were made
    to overflow; `skipped_<n>`, the steps that changed no weight.
    """
    return [_attachment(file_of(base, number)) for number, case in enumerate(cases, 1) if case]


def imported(file: Path, cases: Sequence[str]) -> list[Attachment]:
    """The same of a file that our command made elsewhere, if it is about one of the cases."""
    found = _attachment(file)
    return [found] if found.case in cases or not cases else []


def _attachment(file: Path) -> Attachment:
    try:
        found = parse(CaseCurves, file.read_bytes())
        if found.steps < 1 or not found.curves or not all(curve.losses for curve in found.curves):
            raise ValueError("no training has losses")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: has no losses that can be read", "make it by 'harness profile losses'") from error
    means = tuple(statistics.fmean(curve.losses) for curve in found.curves)
    lasts = [statistics.fmean(curve.losses[-max(1, found.steps // 6) :]) for curve in found.curves]
    values = (
        ("steps", float(found.steps)),
        ("size", float(found.size)),
        ("seeds", float(len(found.curves))),
        ("loss", statistics.fmean(means)),
        ("last", statistics.fmean(lasts)),
    )
    return Attachment(found.case, "losses", values, series=tuple(_series(found, means)))


def _series(found: CaseCurves, means: tuple[float, ...]) -> Iterator[tuple[str, tuple[float, ...]]]:
    length = -(-found.steps // POINTS)
    yield from (("means", means), ("loss", means))
    yield "forced", tuple(map(float, found.curves[0].forced))
    for number, curve in enumerate(found.curves, 1):
        parts = (curve.losses[first : first + length] for first in range(0, found.steps, length))
        yield f"losses_{number}", tuple(round(statistics.fmean(part), _DIGITS) for part in parts)
        yield f"skipped_{number}", tuple(map(float, curve.skipped))
