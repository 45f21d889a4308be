"""NVTX ranges: what a profiler is told, and that a range does next to nothing where none listens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import ranges
from tests.rare import rare


def test_names_and_order(recorded):
    with ranges.NvtxRange("outer"), ranges.NvtxRange("inner"):
        pass
    assert recorded == [("push", "outer"), ("push", "inner"), ("pop", ""), ("pop", "")]


def test_a_range_ends_with_an_error(recorded):
    with pytest.raises(ValueError, match="mine"), ranges.NvtxRange("one"):
        raise ValueError("mine")
    assert recorded == [("push", "one"), ("pop", "")]


def test_a_range_does_next_to_nothing_where_no_profiler_listens(monkeypatch):
    """Its name is looked up once, and the package's domain does nothing."""
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    for kept in (ranges._domain, ranges._of):
        kept.cache_clear()
    for _ in range(3):
        with ranges.NvtxRange("case: prelu/tuned/float32/N96-C64"):
            pass
    known = ranges._of.cache_info()
    assert (known.misses, known.hits) == (1, 2)
    assert type(ranges._domain()).__name__ == "DummyDomain"


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler is installed")
@pytest.mark.parametrize("refuses", [0, rare(1)])
def test_a_profiler_sees_ranges_whether_it_knows_the_payload_extension_or_not(tmp_path, refuses):
    """The package itself gives a domain that does nothing to a profiler that refuses the extension."""
    library, source = tmp_path / "listener.so", Path(__file__).with_name("nvtx_listener.c")
    subprocess.run(["cc", "-shared", "-fPIC", f"-DREFUSES={refuses}", source, "-o", library], check=True)
    code = (
        "import nvtx\n"
        "from harness.ranges import NvtxRange\n"
        "for _ in range(2):\n"
        "    with NvtxRange('outer'), NvtxRange('inner'):\n"
        "        pass\n"
        "print(type(nvtx.get_domain('other')).__name__, flush=True)\n"
    )
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    seen = ["push harness outer", "push harness inner", "pop harness", "pop harness"] * 2
    assert done.stdout.splitlines() == [*seen, "DummyDomain" if refuses else "Domain"]


def test_a_package_without_the_names_that_we_know_is_used_as_it_is(monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/no/such/profiler.so")
    monkeypatch.delattr("nvtx._lib.lib.DomainHandle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nvtx.get_domain", lambda name: f"the domain {name}")
        assert ranges._domain.__wrapped__() == "the domain harness"
