"""Clusters of 16: what the driver is asked, and what counts as no room for one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from harness.collection.ops.chip import H200, Chip
from harness.collection.ops.rows._wide_clusters import most_blocks, resident_clusters


@pytest.fixture
def asked(monkeypatch):
    """What the driver was asked. Its answer is `asked.status`."""
    from cuda.bindings import driver

    found = SimpleNamespace(calls=[], status=driver.CUresult.CUDA_SUCCESS, driver=driver)

    def attribute(*arguments):
        found.calls.append(arguments)
        return (found.status,)

    monkeypatch.setattr(driver, "cuKernelSetAttribute", attribute)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 3)
    return found


def kernel(answer):
    def resident(*_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    return SimpleNamespace(resident_clusters=resident, _kernel=SimpleNamespace(handle="handle"))


@pytest.mark.parametrize(("cluster", "calls"), [(8, 0), (16, 1)])
def test_the_driver_is_asked_for_large_clusters_alone(asked, cluster, calls):
    assert resident_clusters(kernel(7), 512, 1024, cluster) == 7
    wide = asked.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    assert asked.calls == [(wide, 1, "handle", 3)] * calls


def test_a_driver_that_refuses_runs_none(asked):
    asked.status = asked.driver.CUresult.CUDA_ERROR_NOT_SUPPORTED
    assert resident_clusters(kernel(7), 512, 1024, 16) == 0


@pytest.mark.usefixtures("asked")
def test_no_room_for_a_large_cluster_is_none_and_other_errors_are_told():
    assert resident_clusters(kernel(RuntimeError("CUDA_ERROR_INVALID_CLUSTER_SIZE")), 512, 1024, 16) == 0
    with pytest.raises(RuntimeError, match="LAUNCH_FAILED"):
        resident_clusters(kernel(RuntimeError("CUDA_ERROR_LAUNCH_FAILED")), 512, 1024, 16)
    with pytest.raises(RuntimeError, match="CLUSTER"):
        resident_clusters(kernel(RuntimeError("CUDA_ERROR_INVALID_CLUSTER_SIZE")), 512, 1024, 8)


def test_a_gpu_of_a_data_centre_has_sixteen_blocks():
    assert most_blocks(H200) == 16
    assert most_blocks(Chip(170, clusters=True, shared=99 * 1024)) == 8
    assert most_blocks(Chip(108, clusters=False, shared=163 * 1024)) == 1
