"""The comparison with other ways of timing: the kernels, what ncu prints of them, and the table."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.devices import MARK
from tests.one_test import one_test

ROOT = Path(__file__).parent.parent.parent


def script() -> Any:
    spec = importlib.util.spec_from_file_location("trust_calls", ROOT / "scripts" / "trust_calls.py")
    assert spec
    assert spec.loader
    sys.path.insert(0, str(ROOT / "scripts"))  # what scripts share lies beside them
    module = sys.modules["trust_calls"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = script()


def test_there_are_thirty_kernels_with_names_of_their_own() -> None:
    assert len({kernel.name for kernel in SCRIPT.KERNELS}) == 30
    assert SCRIPT.KERNELS[-1].name == "mm 7680x7680 float32"


@one_test("kernel", SCRIPT.KERNELS, ids=lambda kernel: kernel.name)
def test_each_can_be_called(kernel: Any) -> None:
    rest = ((8,),) if kernel.function.__name__ == "layer_norm" else kernel.rest
    small = replace(kernel, shape=(8,) * len(kernel.shape), rest=rest)
    assert small.function(*small.arguments("cpu")).shape == small.shape


def printed(*kernels: tuple[str, float]) -> str:
    rows = "".join(f'"{i}","{name}","{nanos:,.0f}"\n' for i, (name, nanos) in enumerate(kernels))
    return f'==PROF== text\n"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n{rows}'


def test_kernels_of_a_call_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SCRIPT, "KERNELS", SCRIPT.KERNELS[:2])
    one = [("mm", 2000.0)] * (SCRIPT.CALLS - 1) + [("mm", 9000.0)]
    two = [("mm", 3000.0), ("reduce", 1000.0)] * SCRIPT.CALLS
    text = printed((MARK, 1.0), *one, (MARK, 1.0), *two)
    assert SCRIPT.per_call(SCRIPT.launches(text)) == pytest.approx([2e-6, 4e-6])
    with pytest.raises(SystemExit, match="13 kernels in 12 calls"):
        SCRIPT.per_call(SCRIPT.launches(printed((MARK, 1.0), *one, ("mm", 1.0), (MARK, 1.0), *two)))


def test_the_table_says_how_far_each_is_from_ncu() -> None:
    rows = [SCRIPT.Row("a", 30e-6, "graph", 30e-6, 33e-6, 60e-6), SCRIPT.Row("b", 3e-6, "graph", 2e-6, 2e-6, 2e-6)]
    text = SCRIPT.render("A GPU", rows)
    assert "| a | 30.00 us | 30.00 us | graph | +0.0% | 33.00 us | +10.0% | 60.00 us | +100.0% |" in text
    assert "- ours: 1 of 1 kernels of 20.00 us and more within 2.0% of ncu" in text
    assert "- do_bench: 0 of 1" in text
    assert "- products of halves" not in text


def test_products_of_halves_are_told_apart() -> None:
    name = "mm 4096x4096 float16"
    rows = [SCRIPT.Row("a", 30e-6, "graph", 30e-6, 3e-5, 3e-5), SCRIPT.Row(name, 60e-6, "graph", 50e-6, 6e-5, 6e-5)]
    text = SCRIPT.render("A GPU", rows)
    assert "- ours: 1 of 1 kernels of 20.00 us and more within 2.0% of ncu" in text
    assert "- products of halves, ours: 0 of 1 kernels" in text


def test_the_section_takes_the_place_of_an_earlier_one() -> None:
    page = f"# Trust\n\nfirst\n\n{SCRIPT.BEGIN}\n\nlast\n"
    once = SCRIPT.placed(page, f"{SCRIPT.HEADING}\n\nold\n")
    assert SCRIPT.placed(once, f"{SCRIPT.HEADING}\n\nnew\n") == once.replace("old", "new")
    assert once == f"# Trust\n\nfirst\n\n{SCRIPT.HEADING}\n\nold\n\n{SCRIPT.BEGIN}\n\nlast\n"
