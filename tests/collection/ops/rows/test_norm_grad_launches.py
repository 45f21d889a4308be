"""Which kernels of the norms' gradients run, by the clusters that a device has room for."""

from __future__ import annotations

import pytest

from harness import cuda
from harness.collection.ops.chip import H200
from harness.collection.ops.rows import _norm_grad as grad
from harness.collection.ops.rows import _wide_clusters
from harness.errors import MachineError
from harness.model import Case
from harness.ops import Context
from harness.tune.candidates import legal_plans


class FakeKernel:
    facts = None

    def __init__(self, resident):
        self.resident = resident

    def resident_clusters(self, *_):
        return self.resident


def pretend_h200(monkeypatch, resident):
    """Plans are made for an H200 that runs so many clusters at a time."""
    monkeypatch.setattr(cuda, "multiprocessors", lambda: 132)
    monkeypatch.setattr(cuda, "has_clusters", lambda: True)
    monkeypatch.setattr(cuda, "shared_memory", lambda: H200.shared)
    monkeypatch.setattr(cuda, "load", lambda *_: FakeKernel(resident))
    monkeypatch.setattr(grad._GradCase, "floats", lambda *_: None)


def asked_of(monkeypatch, op, dtype, rows, columns):
    """The kernels that a launch of `tuned` is made from, with their macros."""
    asked = []
    kernel = grad._GradCase.kernel
    monkeypatch.setattr(
        grad._GradCase, "kernel", lambda case, name, **macros: asked.append((name, macros)) or kernel(case, name)
    )
    case = Case(op.name, "tuned", dtype, (("M", rows), ("N", columns)))
    grad.tuned(Context(case, None, None, None, op))
    return asked


@pytest.mark.parametrize(("rows", "resident", "entry"), [(1000, 0, "rows"), (1000, 3, "tuned"), (20, 20, "rows")])
def test_what_runs_depends_on_the_clusters_that_find_room(monkeypatch, catalogue, rows, resident, entry):
    """Where there is room for no cluster, the kernel on tiles would write nothing."""
    pretend_h200(monkeypatch, resident)
    assert asked_of(monkeypatch, catalogue["layer_norm_grad"], "float16", rows, 131_072)[0][0] == entry


@pytest.mark.parametrize(("allowed", "cluster"), [(True, 16), (False, 8)])
def test_clusters_are_smaller_where_the_driver_allows_no_large_ones(monkeypatch, catalogue, allowed, cluster):
    pretend_h200(monkeypatch, resident=7)
    monkeypatch.setattr(_wide_clusters, "_allowed", lambda _: allowed)
    parts = []
    monkeypatch.setattr(grad._ColumnSums, "__init__", lambda _self, _case, count: parts.append(count))
    name, macros = asked_of(monkeypatch, catalogue["rms_norm_grad"], "float32", 1000, 131_072)[0]
    assert (name, macros["CLUSTER"]) == ("tuned", cluster)
    assert parts[0] == 7, "as many teams as run at a time"


def test_a_search_is_told_of_a_plan_without_room_and_others_take_another_one(monkeypatch, catalogue):
    pretend_h200(monkeypatch, resident=0)
    monkeypatch.setattr(_wide_clusters, "_allowed", lambda _: True)
    op = catalogue["rms_norm_grad"]
    case = Case(op.name, "tuned", "float32", (("M", 1000), ("N", 131_072)))
    tuning = op.variants["tuned"].tuning
    plan = next(one for one in legal_plans(tuning, case) if one["way"] == "tiles" and one["cluster"] == 16)
    ctx = Context(case, None, None, None, op)
    monkeypatch.setattr(Context, "plan", lambda _: plan)
    grad.tuned(ctx)
    ctx.tried = plan
    with pytest.raises(MachineError, match="no room for a cluster of 16 blocks"):
        grad.tuned(ctx)
