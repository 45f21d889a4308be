"""What a run asks for before it measures, and how it judges what a worker sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness import runner
from harness.limits import Needs
from harness.model import Code, Job, Limits, Measurement, Work
from harness.ops import Op
from harness.scenario import Plan

MakeJob = Callable[..., Job]


def test_a_measurement_that_cannot_be_true_is_a_crashed_case(job: MakeJob) -> None:
    """A run with it couldn't be read again, and all its other results with it."""
    measured = Measurement(job("fine").case, "ok", (0.0, 1e-6), process=2, code=Code("fault", "c0de"))
    checked = runner.judged(measured, Limits())
    assert (checked.status, checked.case, checked.process) == ("crashed", measured.case, 2)
    assert checked.code == measured.code
    assert checked.error
    assert checked.error.startswith("what was measured can't be true: a call takes 0.0 s")
    sound = replace(measured, samples=(1e-6,))
    assert runner.judged(sound, Limits()) == sound


def test_limits_are_asked_for_as_the_work_needs_them(job: MakeJob) -> None:
    product = Op("product", "", {"N": ""}, flops={"float16": "2 * N", "int8": "0 * N"})
    ring = Op("ring", "", {"N": ""}, work=lambda s, _: Work(read=s["N"], sent=s["N"]))
    product.variant("exact", "", arithmetic="float32")(lambda ctx: lambda t: None)
    ring.variant("v", "")(lambda ctx: lambda t: None)
    product.variant("v", "")(lambda ctx: lambda t: None)
    jobs = [job("v", op=op) for op in ("product", "ring")]
    jobs.append(replace(jobs[1], case=replace(jobs[1].case, world=4)))
    assert runner.needs(Plan((), tuple(jobs), {"product": product, "ring": ring})) == Needs(
        kinds=("float16",), worlds=(4,)
    )
    jobs.append(job("exact", op="product"))
    assert runner.needs(Plan((), tuple(jobs), {"product": product, "ring": ring})).kinds == ("float16", "float32")
    assert runner.needs(Plan((), tuple(jobs), {})) == Needs()
