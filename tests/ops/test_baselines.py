"""torch.compile as the baselines use it."""

from __future__ import annotations

from harness.ops._baselines import compiled


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
