"""torch.compile as the baselines use it."""

from __future__ import annotations

import pytest

from harness.errors import UsageError
from harness.ops import Catalogue, Op
from harness.ops.baselines import MODES, compiled, compiled_variants
from tests.one_test import one_test


@pytest.mark.slow  # C++ is compiled; that torch takes the modes and traces functions, other tests have
def test_inductor_compiles_for_a_cpu():
    """Other tests of baselines only trace them; see `traced_only` in conftest.py."""
    import torch
    from torch._inductor import config, metrics

    metrics.reset()
    x = torch.randn(100)
    # Without trying which vector instructions the processor has, which takes longer than all the rest.
    with config.patch({"cpp.vec_isa_ok": False}):
        assert torch.equal(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)
    assert metrics.generated_kernel_count == 1


def test_an_op_declares_both_modes_at_once(monkeypatch):
    import torch

    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options["mode"]) or function)
    op = Op("twice", "", {"N": "elements"})

    @compiled_variants(op, "torch.compile of a double")
    def compile_(_, compiled):
        return compiled(lambda x: 2 * x)

    assert [variant.prepare(None)(3) for variant in op.variants.values()] == [6, 6]
    assert asked == ["default", "max-autotune-no-cudagraphs"]
    assert [variant.role for variant in op.variants.values()] == ["baseline", "baseline"]
    assert [variant.devices for variant in op.variants.values()] == [("any",), ("cuda",)]
    assert op.variants["compile_autotune"].summary == "torch.compile of a double; mode max-autotune-no-cudagraphs"
    with pytest.raises(UsageError, match=r"test_baselines.py:\d+: op 'twice' has a variant named 'compile' already"):
        compiled_variants(op, "again")(compile_)


@one_test("op", Catalogue().values(), ids=lambda op: op.name)
def test_every_op_has_both_modes_or_none_and_they_declare_the_same(op):
    found = [op.variants.get(name) for name in MODES]
    if found == [None, None]:
        return
    default, tuned = found
    for field in ("inputs", "outputs", "encode", "decode", "traffic", "unsupported", "timer", "returns"):
        assert getattr(default, field) is getattr(tuned, field), field


@pytest.mark.parametrize("mode", MODES.values())
def test_torch_takes_the_modes(mode):
    """It checks them, and that they fit the other options, before it compiles anything."""
    assert callable(compiled(lambda x: x, mode))
    with pytest.raises(RuntimeError, match="mode"):
        compiled(lambda x: x, f"{mode}-please")
