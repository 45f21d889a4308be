"""Judge a candidate: whether a kernel is right, how fast it is, and whether one may believe it.

A **candidate** is a file with a kernel in a form that is known (`forms`). It becomes a variant of an op, through the
public door, beside torch's baselines; so it is checked, timed and rechecked as every variant is, in processes that it
may end. Nothing of it runs in the process that judges.
"""

from __future__ import annotations

from harness.judge.procedure import judge
from harness.judge.records import Asked, Calls, Checked, Judgement, Timed

__all__ = ["Asked", "Calls", "Checked", "Judgement", "Timed", "judge"]
