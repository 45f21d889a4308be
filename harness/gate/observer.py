"""What a gate reports while it works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.gate.records import Decision, Revision, Side, Stage, UsedCode
from harness.model import Job, Machine, Measurement


@dataclass(frozen=True, slots=True)
class Comparing:
    """What a gate compares. cases: how many.

    used: the files that both sides use; None if one revision is compared with itself. same: whether nothing is
    measured, since both sides have the same code.
    """

    base: Revision
    now: Revision
    cases: int
    machine: Machine
    used: UsedCode | None = None
    same: bool = False


class GateObserver(Protocol):
    """Receives reports of what happens, in the thread that called the gate."""

    def say(self, text: str) -> None:
        """Something that the reader must know, such as what isn't measured here."""

    def note(self, text: str) -> None:
        """Something takes time, and meanwhile nothing is measured."""

    def comparing(self, compared: Comparing) -> None:
        """What is compared with what, before anything is measured."""

    def planned(self, stage: Stage, pairs: int, measurements: int) -> None:
        """A stage begins, of `pairs` pairs of processes with `measurements` measurements in all."""

    def started(self, job: Job, side: Side) -> None:
        """A case is being measured."""

    def finished(self, measurement: Measurement, side: Side) -> None:
        """A case was measured."""

    def paired(self, first: Side) -> None:
        """A pair of processes is complete."""

    def settled(self, pairs: int, decisions: Mapping[str, Decision], going: Sequence[str]) -> None:
        """The pairs have decided these cases, by id; the cases in `going` need more pairs."""
