"""The records that flow through the harness: frozen, in SI units (seconds, bytes), with derived properties only."""

from __future__ import annotations

from harness.model.case import FAILED, LONGEST_CASE, Cache, Case, Job, Status, Timing, Value
from harness.model.counters import COUNTERS, PIPE, STALL, Counter
from harness.model.limits import COMPUTE_KINDS, Bound, ComputePoint, Limits, LinkPoint, StreamPoint
from harness.model.machine import Conditions, DeviceFacts, Machine
from harness.model.measurement import (
    Attachment,
    Code,
    KernelFacts,
    KernelProfile,
    Measurement,
    RangeProfile,
    Result,
    Timer,
    Traffic,
    Warning,
    Work,
    by_group,
)
from harness.model.run import SCHEMA, Difference, Header, Run
from harness.model.scenario import LIBRARY_ROLES, NEAR, Claim, Curve, Expectation, Says, Scenario, usual_role

__all__ = [
    "COMPUTE_KINDS",
    "COUNTERS",
    "FAILED",
    "LIBRARY_ROLES",
    "LONGEST_CASE",
    "NEAR",
    "PIPE",
    "SCHEMA",
    "STALL",
    "Attachment",
    "Bound",
    "Cache",
    "Case",
    "Claim",
    "Code",
    "ComputePoint",
    "Conditions",
    "Counter",
    "Curve",
    "DeviceFacts",
    "Difference",
    "Expectation",
    "Header",
    "Job",
    "KernelFacts",
    "KernelProfile",
    "Limits",
    "LinkPoint",
    "Machine",
    "Measurement",
    "RangeProfile",
    "Result",
    "Run",
    "Says",
    "Scenario",
    "Status",
    "StreamPoint",
    "Timer",
    "Timing",
    "Traffic",
    "Value",
    "Warning",
    "Work",
    "by_group",
    "usual_role",
]
