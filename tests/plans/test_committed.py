"""The package's tables: each lies where the look-up finds it, is of today's kernels, and its plans can be launched."""

from __future__ import annotations

import pytest

from harness import paths, plans, store
from harness.cuda.assumed import KNOWN, assuming
from harness.model import Case
from harness.ops import Catalogue
from harness.ops.tuning import kernels_digest
from harness.plans import tables

ARCH = {"NVIDIA H200": "sm_90"}
FILES = sorted(paths.data("plans").glob("*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_table_is_used_where_its_device_is(file):
    table = store.parse(plans.PlanTable, file.read_bytes())
    ops, stale, refused = Catalogue(), set(), []
    assert file.name == plans.file_name(table.device)
    with assuming(KNOWN[ARCH[table.device]]):
        for entry in table.entries:
            if entry.source != kernels_digest(ops[entry.op], entry.variant):
                stale.add(entry.op)
            case = Case(entry.op, entry.variant, entry.dtype, tuple(entry.shape.items()), tuple(entry.choices.items()))
            tuning = ops[entry.op].variants[entry.variant].tuning
            refused += [(case.id, timed.plan) for timed in entry.timed if tuning.obstacle(case, timed.plan)]
    assert not stale, f"other kernels than today's made them: search again on this GPU, or take out {sorted(stale)}"
    assert not refused


def test_there_is_no_table_for_a_gpu_that_is_not_here(monkeypatch, request):
    monkeypatch.setattr(tables, "device_name", lambda _kind: "NVIDIA H200")
    request.addfinalizer(plans.forget)
    plans.forget()
    assert len(plans.entries("cuda")) == 1
    with assuming(KNOWN["sm_90"]):
        assert plans.entries("cuda") == ()


class NoVisibleGpuError(Exception):
    """As cuda.core's own, which is no RuntimeError."""


@pytest.mark.parametrize("error", [RuntimeError("Failed to dlopen libcuda.so.1"), NoVisibleGpuError()])
def test_there_is_no_table_where_no_gpu_can_be_asked(monkeypatch, request, error):
    def device_name(_kind):
        raise error

    monkeypatch.setattr(tables, "device_name", device_name)
    request.addfinalizer(plans.forget)
    plans.forget()
    assert plans.entries("cuda") == ()
