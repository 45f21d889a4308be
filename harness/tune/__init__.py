"""`harness tune`: search the fastest plans of a variant at some sizes, and write them into a table.

A search lists the plans that a variant's `tuning` allows at a size, drops the plans that can't launch or that spill
more than the rule's by what the compiler says, and times the others in rounds, each with a third of the plans of the
round before and three times the time (successive halving). The fastest plan and the rule's are then timed once more,
since the fastest of several was also the luckiest. Each candidate is a variant of the op, so that it is checked before
and after it is timed, in processes that may die. Sizes are searched in parts, and the table has a part's sizes when
the part is done. Each round is a run in a folder, so that a search that was interrupted goes on.

Ideas: Kernel Tuner's restrictions and its drop of what doesn't compile; Triton's autotuner, which keeps the best by
key; CUTLASS's profiler, which enumerates what the hardware allows; Jamieson and Talwalkar 2016, successive halving.
"""

from __future__ import annotations

from harness.tune.candidates import Candidate
from harness.tune.order import Ahead, in_order
from harness.tune.parts import in_parts
from harness.tune.procedure import Listed, ToTune, Tuned, compile_anew, forget, listed, refuse_none, tune
from harness.tune.search import schedule

__all__ = [
    "Ahead",
    "Candidate",
    "Listed",
    "ToTune",
    "Tuned",
    "compile_anew",
    "forget",
    "in_order",
    "in_parts",
    "listed",
    "refuse_none",
    "schedule",
    "tune",
]
