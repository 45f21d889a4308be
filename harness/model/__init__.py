"""The records that flow through the harness: frozen, in SI units (seconds, bytes), with derived properties only."""

from __future__ import annotations

from harness.model.case import FAILED, Cache, Case, Job, Status, Timing, Value
from harness.model.limits import COMPUTE_KINDS, Bound, ComputePoint, Limits, LinkPoint, StreamPoint
from harness.model.machine import Conditions, DeviceFacts, Machine
from harness.model.measurement import (
    Attachment,
    Code,
    KernelFacts,
    Measurement,
    Result,
    Timer,
    Traffic,
    Warning,
    Work,
    by_group,
)
from harness.model.run import SCHEMA, Difference, Header, Run
from harness.model.scenario import LIBRARY_ROLES, Claim, Curve, Expectation, Says, Scenario, usual_role

__all__ = [
    "COMPUTE_KINDS",
    "FAILED",
    "LIBRARY_ROLES",
    "SCHEMA",
    "Attachment",
    "Bound",
    "Cache",
    "Case",
    "Claim",
    "Code",
    "ComputePoint",
    "Conditions",
    "Curve",
    "DeviceFacts",
    "Difference",
    "Expectation",
    "Header",
    "Job",
    "KernelFacts",
    "Limits",
    "LinkPoint",
    "Machine",
    "Measurement",
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
