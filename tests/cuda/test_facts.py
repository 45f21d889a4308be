"""What the compiler says of a kernel, read from its log, kept, and made for a GPU that isn't here."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness import cuda, kept
from harness.cuda import compile as compiler
from harness.cuda.assumed import KNOWN, known
from harness.cuda.facts import kernel_facts, parsed
from harness.errors import CompileError, UsageError
from harness.model import KernelFacts

SOURCE = """
extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1.0f; }
extern "C" __global__ void sharing(float* x) {
  __shared__ float y[64];
  y[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = y[63 - threadIdx.x];
}
"""
LOG = """ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_the_log_of_ptxas() -> None:
    assert parsed(LOG) == [KernelFacts("one", 96, 32, 1024), KernelFacts("two", 8, 0, 0)]


def test_facts_of_a_real_kernel_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.cu"
    file.write_text(SOURCE)
    found = kernel_facts(file, "sharing", {}, "sm_80")
    assert (found.local, found.shared) == (0, 256)
    assert 0 < found.registers < 64
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "compile_verbose", lambda *_: pytest.fail("it is kept"))
        assert kernel_facts(file, "sharing", {}, "sm_80") == found
        assert kernel_facts(file, "plain", {}, "sm_80").shared == 0
    with pytest.raises(CompileError, match="has no kernel 'plane'"):
        kernel_facts(file, "plane", {}, "sm_80")
    [entry] = (tmp_path / "cache" / "facts").iterdir()
    kept.write(f"facts/{entry.name}", b"damaged")
    assert kernel_facts(file, "sharing", {}, "sm_80") == found


def test_a_gpu_that_is_assumed_is_the_current_one_meanwhile() -> None:
    with cuda.assuming(KNOWN["sm_120"]):
        with cuda.assuming(known("sm_80")):
            assert (cuda.architecture(), cuda.multiprocessors(), cuda.has_clusters()) == ("sm_80", 108, False)
            assert cuda.resident_threads() == 108 * 2048
        assert (cuda.architecture(), cuda.shared_memory(), cuda.has_clusters()) == ("sm_120", 99 * 1024, True)
        assert cuda.resident_threads() == 170 * 1536


def test_an_architecture_that_nothing_is_known_of() -> None:
    with pytest.raises(UsageError) as caught:
        known("sm_70")
    assert "nothing is known of the architecture 'sm_70'" in caught.value.message
    assert "sm_80" in caught.value.advice
