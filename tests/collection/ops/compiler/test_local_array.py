"""Rotations within groups of 8, bit by bit; and what each kernel keeps in local memory."""

from __future__ import annotations

import pytest

from tests.one_test import one_test

COMPILED = [{"G": 1000, "K": 3}]
LOCAL_MEMORY = ("runtime_index",)
OURS = ["runtime_index", "constant_index", "tuned"]


def rotated(x, places):
    """The result by the definition, as bits."""
    import torch

    raw = x.view(torch.int32 if x.element_size() == 4 else torch.int16)
    return raw[:, [(j - places) % 8 for j in range(8)]]


def check(launch, placed, variant, dtype, groups, places, x_offset=0, y_offset=0):
    import torch

    x, y = placed((groups, 8), dtype, x_offset), placed((groups, 8), dtype, y_offset)
    x.tensor.copy_(torch.randn(groups, 8, device="cuda"))
    launch("local_array", variant, dtype, {"G": groups, "K": places}, x=x, y=y)
    assert torch.equal(rotated(y.tensor, 0), rotated(x.tensor, places))


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [0, 1, 2, 31, 33, 127, 129, 255, 257, 100_003])
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, variant, dtype, groups):
    for places in (0, 1, 3, 7) if groups > 1000 else range(8):
        check(launch, placed, variant, dtype, groups, places)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, dtype):
    for groups in (1, 517):
        for places in (2, 5):
            for offsets in ((0, 1), (1, 0), (1, 1), (3, 5), (4, 4), (8, 4)):
                check(launch, placed, variant, dtype, groups, places, *offsets)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_every_bit_pattern_passes(launch, variant):
    import torch

    x = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(-1, 8)
    y = torch.zeros_like(x)
    launch("local_array", variant, "float16", {"G": 2**13, "K": 5}, x=x.view(torch.float16), y=y.view(torch.float16))
    assert torch.equal(y, x.roll(5, 1))


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    groups = 2**28 + 3
    x, y = placed((groups, 8), "float16"), placed((groups, 8), "float16")
    x.tensor.view(torch.int32).copy_(torch.arange(groups, device="cuda", dtype=torch.int32).view(-1, 1) * 4 + 1)
    x.tensor.view(torch.int32).add_(torch.arange(4, device="cuda", dtype=torch.int32))
    launch("local_array", variant, "float16", {"G": groups, "K": 3}, x=x, y=y)
    for start in (0, 2**28 - 500, groups - 1000):
        part = slice(start, start + 1000)
        assert torch.equal(rotated(y.tensor[part], 0), rotated(x.tensor[part], 3)), start


@one_test("arch", ["sm_80", "sm_90", "sm_100"])
@one_test("scalar", ["unsigned", "unsigned short"])
def test_only_the_runtime_index_lands_in_local_memory(compiled, scalar, arch):
    def frames(macros):
        kernels = compiled("local_array.cu", {"SCALAR": scalar, **macros}, arch)
        return [kernel.stack_bytes for kernel in kernels.values()]

    a_group = 8 * (4 if scalar == "unsigned" else 2)
    assert frames({"RUNTIME_INDEX": 1}) == [2 * a_group]
    assert frames({}) == [0, 0]


@one_test("places", range(8))
def test_eager_and_the_reference_follow_the_definition(trial, places):
    import torch

    eager = trial("local_array", "eager", "float32", G=5, K=places)
    after = eager.call()
    assert torch.equal(after.y, rotated(after.x, places).view(torch.float32))
    assert eager.complaint(y=after.y) is None
