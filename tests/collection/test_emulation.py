"""What stands in for a GPU finds the mistakes that it is there for."""

from __future__ import annotations

import ctypes
import shutil

import pytest
import torch

from tests.collection import emulation
from tests.collection.emulation import Gpu, emulated_source, guarded

BARRIER = "__syncthreads();"
REVERSED = """
extern "C" __global__ void reversed(const float* x, float* y, unsigned n) {
  __shared__ float all[64];
  all[threadIdx.x] = x[threadIdx.x];
  BARRIER
  if (threadIdx.x < n) y[threadIdx.x] = all[63 - threadIdx.x];
}
"""
APART = """
extern "C" __global__ void apart(float* y) {
  WAIT __syncthreads();
  __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  y[threadIdx.x] = 1.0f;
}
"""


@pytest.fixture
def run(monkeypatch, tmp_path, emulated_folder):
    """run(source, entry, order, *arguments): launches a kernel of a block of 64 threads."""
    emulation.compiler()

    def launch(source, entry, order, *arguments):
        kernels = tmp_path / str(len(list(tmp_path.iterdir()))) / "kernels"
        (kernels / "mine").mkdir(parents=True)
        (kernels / "mine" / f"{entry}.cu").write_text(source)
        monkeypatch.setattr(emulation, "data", lambda _: kernels)
        emulation._prepared.cache_clear()
        emulation.library.cache_clear()
        kernel = Gpu(emulated_folder, order=order).load(kernels / "mine" / f"{entry}.cu", entry, {})
        kernel(1, 64, *arguments)

    yield launch
    emulation._prepared.cache_clear()
    emulation.library.cache_clear()


@pytest.mark.parametrize(("barrier", "orders"), [(BARRIER, {0, 1, 2}), ("", {1})])
def test_a_missing_barrier_shows_in_some_order(run, barrier, orders):
    right = set()
    for order in (0, 1, 2):
        x, y = torch.arange(64.0), torch.empty(64)
        run(REVERSED.replace("BARRIER", barrier), "reversed", order, x, y, ctypes.c_uint32(64))
        if torch.equal(y, x.flip(0)):
            right.add(order)
    assert right == orders if barrier else right < {0, 1, 2}


def test_an_access_behind_a_tensor_is_found(run):
    x = torch.arange(64.0)
    run(REVERSED.replace("BARRIER", BARRIER), "reversed", 0, x, guarded(torch.empty(60)), ctypes.c_uint32(60))
    with pytest.raises(AssertionError, match="outside of all tensors"):
        run(REVERSED.replace("BARRIER", BARRIER), "reversed", 0, x, guarded(torch.empty(60)), ctypes.c_uint32(64))


def test_threads_that_wait_for_each_other_are_found(run):
    run(APART.replace("WAIT", ""), "apart", 0, torch.empty(64))
    with pytest.raises(AssertionError, match="none can go on"):
        run(APART.replace("WAIT", "if (threadIdx.x != 5)"), "apart", 0, torch.empty(64))


def test_what_an_instruction_does_is_written_in_its_place():
    text = 'asm volatile("st.global.v4.b32 [%0], {%1};" ::"l"(f(to)), "r"(a.x), "r"(b), "r"(c), "r"(d) : "memory");'
    assert emulated_source(text) == "emulated::store_words(f(to), a.x, b, c, d);"
    assert emulated_source('asm("" : "+l"(matrix));') == "((void)0);"
    assert emulated_source('asm("what.is.this %0;" : "=r"(x));') == 'emulated::unknown("what.is.this");'
    assert emulated_source("__shared__ float sums[8][W];") == (
        "static char key_of_sums; auto& sums = emulated::shared<float[8][W]>(&key_of_sums);"
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
