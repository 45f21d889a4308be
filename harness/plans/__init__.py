"""Tables of plans: which plan of a kernel a search has found fastest, at which sizes, on which GPU.

A plan is the values of a variant's parameters, such as threads and packs. `harness tune` writes tables, `choose` looks
a plan up. The package has the tables of GPUs that were measured, in its folder `plans`; tables of other GPUs, and
tables of others' ops, lie in the user's cache folder.
"""

from __future__ import annotations

from harness.plans.lookup import Neighbour, choose
from harness.plans.records import Entry, Plan, PlanTable, TimedPlan
from harness.plans.tables import FOLDER, device_name, entries, every, file_name, forget, locked, merged, read, write

__all__ = [
    "FOLDER",
    "Entry",
    "Neighbour",
    "Plan",
    "PlanTable",
    "TimedPlan",
    "choose",
    "device_name",
    "entries",
    "every",
    "file_name",
    "forget",
    "locked",
    "merged",
    "read",
    "write",
]
