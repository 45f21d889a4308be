"""What stands in for a GPU finds the mistakes that it is there for."""

from __future__ import annotations

import ctypes
import shutil

import pytest
import torch

from tests.collection import emulation
from tests.collection.emulation import Gpu, emulated_source, guarded

BY_EMULATION = pytest.mark.slow
"""Tests that compile for what stands in for a GPU: only slow tests run kernels there."""
THREADS = 64
# `waiting`: how many threads wait at the barrier, which all of them have to.
REVERSED = """
extern "C" __global__ void reversed(const float* x, float* y, unsigned n, unsigned waiting) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < waiting) __syncthreads();
  __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  if (threadIdx.x < n) y[threadIdx.x] = all[63 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, emulated_folder):
    """run(order, x, y, n, waiting): launches the kernel in a block."""
    emulation.compiler()
    kernels = tmp_path_factory.mktemp("reversed") / "kernels"
    file = kernels / "mine" / "reversed.cu"
    file.parent.mkdir(parents=True)
    file.write_text(REVERSED)

    def launch(order, x, y, n, waiting):
        kernel = Gpu(emulated_folder, order=order).load(file, "reversed", {})
        kernel(1, THREADS, x, y, ctypes.c_uint32(n), ctypes.c_uint32(waiting))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulation, "data", lambda _: kernels)
        emulation._prepared.cache_clear()
        yield launch
    emulation._prepared.cache_clear()
    emulation.library.cache_clear()


@BY_EMULATION
@pytest.mark.parametrize(("waiting", "orders"), [(THREADS, {0, 1, 2}), (0, {1})])
def test_a_missing_barrier_shows_in_some_order(run, waiting, orders):
    right = set()
    for order in (0, 1, 2):
        x, y = torch.arange(64.0), torch.empty(64)
        run(order, x, y, THREADS, waiting)
        if torch.equal(y, x.flip(0)):
            right.add(order)
    assert right == orders if waiting else right < {0, 1, 2}


@BY_EMULATION
def test_an_access_behind_a_tensor_is_found(run):
    x = torch.arange(64.0)
    run(0, x, guarded(torch.empty(60)), 60, THREADS)
    with pytest.raises(AssertionError, match="outside of all tensors"):
        run(0, x, guarded(torch.empty(60)), 64, THREADS)


@BY_EMULATION
def test_threads_that_wait_for_each_other_are_found(run):
    x, y = torch.arange(64.0), torch.empty(64)
    run(0, x, y, THREADS, THREADS)
    with pytest.raises(AssertionError, match="none can go on"):
        run(0, x, y, THREADS, THREADS - 1)


@BY_EMULATION
def test_what_is_fetched_to_the_l2_must_be_there(tmp_path, monkeypatch, emulated_folder):
    emulation.compiler()
    file = tmp_path / "kernels" / "mine" / "fetching.cu"
    file.parent.mkdir(parents=True)
    fetch = 'asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(x), "r"(bytes));'
    file.write_text(f'extern "C" __global__ void fetching(const float* x, unsigned bytes) {{ {fetch} }}')
    monkeypatch.setattr(emulation, "data", lambda _: tmp_path / "kernels")
    emulation._prepared.cache_clear()
    kernel, x = Gpu(emulated_folder).load(file, "fetching", {}), guarded(torch.empty(64))
    kernel(1, 32, x, ctypes.c_uint32(256))
    with pytest.raises(AssertionError, match="outside of all tensors"):
        kernel(1, 32, x, ctypes.c_uint32(272))
    emulation._prepared.cache_clear()


def test_what_an_instruction_does_is_written_in_its_place():
    text = 'asm volatile("st.global.v4.b32 [%0], {%1};" ::"l"(f(to)), "r"(a.x), "r"(b), "r"(c), "r"(d) : "memory");'
    assert emulated_source(text) == "emulated::store_words(f(to), a.x, b, c, d);"
    assert emulated_source('asm("" : "+l"(matrix));') == "((void)0);"
    assert emulated_source('asm("what.is.this %0;" : "=r"(x));') == 'emulated::unknown("what.is.this");'
    assert emulated_source("__shared__ float sums[8][W];") == (
        "static char key_of_sums; auto& sums = emulated::shared<float[8][W]>(&key_of_sums);"
    )
    assert emulated_source("__shared__ T a, b[2], c[N * 2];") == " ".join(
        f"static char key_of_{name}; auto& {name} = emulated::shared<T{size}>(&key_of_{name});"
        for name, size in (("a", ""), ("b", "[2]"), ("c", "[N * 2]"))
    )


def test_tensors_lie_as_near_to_what_cannot_be_read_as_they_may():
    for offset in (0, 1, 3):
        tensor = guarded(torch.arange(10.0), offset)
        assert torch.equal(tensor, torch.arange(10.0))
        assert tensor.data_ptr() % 16 == 4 * offset
        assert -(tensor.data_ptr() + 40) % 4096 < 16


def test_without_a_compiler_tests_are_skipped(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(pytest.skip.Exception, match=r"no C\+\+ compiler"):
        emulation.compiler()
