"""How one kernel cuts a small layer of batch norm: each element once, in as many registers as there are."""

from __future__ import annotations

import math

import pytest

from harness.collection.ops.batch_norm._batch_norm import ImageSizes
from harness.collection.ops.batch_norm._whole import CLUSTERS, REGISTERS, Whole
from harness.cuda.assumed import KNOWN, assuming
from harness.ops import Context
from harness.tune.candidates import legal_plans
from tests.collection.conftest import case_of
from tests.collection.test_kernels import GENERATOR, FakeKernel, alignments, pretend_gpu
from tests.one_test import one_test


@pytest.fixture
def h200():
    with assuming(KNOWN["sm_90"]):
        yield


def images(catalogue, dtype, shape, layout, op="bn_add_relu"):
    return case_of(catalogue[op], "tuned", dtype, dict(zip("NCHW", shape, strict=True)) | {"layout": layout})


def elements(cut, block, thread):
    """Where the thread's packs begin, as the kernel counts."""
    told = cut.cut()
    rank, first = block & (1 << told.split) - 1, (block >> told.split) * told.group * told.rows.size
    if cut.form == "one":
        number = [rank * cut.threads + thread + j * (cut.threads << told.split) for j in range(cut.kept + 1)]
        places = [divmod(pack, cut.across) for pack in number if pack < cut.packs]
    else:
        along, (own, place) = cut.threads // cut.across, divmod(thread, cut.across)
        begin = rank * along + own if own < along else told.samples
        places = [(begin + j * (along << told.split), place) for j in range(cut.kept + 1)]
        places = [each for each in places if each[0] < told.samples]
    return [first + sample * told.sample + place * cut.per_pack for sample, place in places]


@pytest.mark.usefixtures("h200")
@one_test(
    "sizes",
    [
        *[(outer, 8, inner) for outer in (1, 2, 33) for inner in (1, 8, 15, 49, 50, 64, 196)],
        *[(1, 2, 3136), (5, 1, 4096), (200, 8, 49), (2000, 8, 1), (97, 8, 100), (3, 8, 225)],
    ],
)
@one_test("per_pack", [4, 8])
def test_each_element_is_of_one_thread(sizes, per_pack):
    sizes, cuts = ImageSizes(*sizes), 0
    for cluster in CLUSTERS:
        cut = Whole.of(sizes, per_pack, cluster)
        if cut is None:
            continue
        cuts += 1
        assert cut.threads % 32 == 0
        assert cut.threads <= 512
        assert cut.groups * cut.group == sizes.channels
        assert cut.group * sizes.inner % 8 == 0, "the mask has whole bytes of a group"
        assert cut.form != "few" or cut.threads >= 32 * cut.group, "a warp adds up a channel"
        begins = []
        for block in range(cut.groups * cluster):
            of_block = [elements(cut, block, thread) for thread in range(cut.threads)]
            assert any(of_block), "each block has packs"
            assert max(map(len, of_block)) <= cut.kept
            begins += [begin for of_thread in of_block for begin in of_thread]
        assert sorted(begins) == [*range(0, sizes.elements, per_pack)]
    assert cuts


@pytest.mark.usefixtures("h200")
@one_test("sizes", [(1, 64, 3136), (2, 8, 49), (33, 16, 15), (1, 16, 1), (3, 8, 1)])
def test_a_shift_is_made_of_elements_of_its_channel(sizes):
    sizes = ImageSizes(*sizes)
    cut = Whole.of(sizes, 8, 1)
    for seen in cut.cut().seen:
        sample, place = divmod(seen, sizes.channels * sizes.inner)
        assert sample < sizes.outer
        assert place < sizes.inner
    assert len(set(cut.cut().seen)) == min(3, sizes.samples)


@pytest.mark.usefixtures("h200")
@one_test(
    ("sizes", "why"),
    [
        ((2, 3, 49), "channels aren't whole groups of 8"),
        ((2, 16, 4), "rows are shorter than a pack of halves"),
        ((2, 20, 1), "20 channels aren't whole bytes"),
        ((1, 8, 3025), "a group's sample has more packs than threads"),
        ((400, 1, 3136), "threads have no room"),
        ((0, 8, 49), "nothing to do"),
    ],
)
def test_what_no_block_owns(sizes, why):
    assert [Whole.of(ImageSizes(*sizes), 8, cluster) for cluster in CLUSTERS] == [None] * 4, why


SMALL = [(1, 64, 56, 56), (32, 512, 7, 7), (1, 2048, 7, 7), (8, 256, 14, 14), (16, 96, 14, 14), (4, 24, 56, 56)]


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", ["bn_add_relu", "bn_add_relu_grad"])
def test_small_layers_have_one_kernel_by_the_rule(catalogue, op, layout):
    def ruled(shape) -> int:
        tuning = catalogue[op].variants["tuned"].tuning
        return int(tuning.rule(images(catalogue, "float16", shape, layout, op))["whole"])

    for shape in SMALL:
        assert ruled(shape), shape
    for shape in ((256, 256, 56, 56), (256, 2048, 7, 7), (2, 3, 7, 7)):
        assert not ruled(shape), shape
    with assuming(KNOWN["sm_80"]):
        assert {ruled(shape) for shape in SMALL} <= {0, 1}


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("op", "once"), [("bn_add_relu", ["x"]), ("bn_add_relu_grad", ["dy", "x", "mask"])])
def test_traffic_of_one_kernel_has_each_tensor_once(catalogue, monkeypatch, op, once):
    import torch

    def traffic(shape):
        symbols = images(catalogue, "float16", shape, "nchw", op).values
        return catalogue[op].traffic_of(catalogue[op].variants["tuned"], symbols, "float16")

    three = traffic(SMALL[0])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    elements, saved = math.prod(SMALL[0]), three.read - traffic(SMALL[0]).read
    assert saved == sum(elements // 8 if name == "mask" else 2 * elements for name in once)
    assert three.written == traffic(SMALL[0]).written


@pytest.mark.usefixtures("h200")
def test_a_search_tries_one_kernel_and_three(catalogue):
    tuning, case = catalogue["bn_add_relu"].variants["tuned"].tuning, images(catalogue, "float16", SMALL[0], "nhwc")
    plans = [*legal_plans(tuning, case)]
    assert {plan["whole"] for plan in plans} == {0, *CLUSTERS}
    assert {plan["turns"] for plan in plans if plan["whole"]} == {0}
    with assuming(KNOWN["sm_80"]):
        assert {plan["whole"] for plan in legal_plans(tuning, case)} == {0, 1}
        assert "capability 9.0" in tuning.obstacle(case, {"turns": 0, "whole": 2})
    many = images(catalogue, "float16", (256, 2048, 7, 7), "nchw")
    assert "waves" in tuning.obstacle(many, {"turns": 0, "whole": 8})


@pytest.mark.parametrize("file", ["bn_add_relu_whole.cu", "bn_add_relu_grad_whole.cu"])
@pytest.mark.parametrize("packs", REGISTERS)
def test_threads_have_as_many_registers_as_plans_believe(compiled, file, packs):
    kernels = compiled(file, {"SCALAR": "__nv_bfloat16", "WHOLE": packs})
    assert len(kernels) == 3
    most = max(kernel.registers for kernel in kernels.values())
    assert REGISTERS[packs] // 2 < most <= REGISTERS[packs]


THREE = {
    "bn_add_relu": ["bn_statistics_rows", "bn_finish", "bn_apply_two_rows"],
    "bn_add_relu_grad": [f"bn_add_relu_grad_{name}" for name in ("sums_rows", "total", "apply_rows")],
}


@pytest.mark.parametrize(("op", "one"), [("bn_add_relu", "bn_whole_few"), ("bn_add_relu_grad", "bn_whole_grad_few")])
def test_three_kernels_run_where_a_tensor_begins_elsewhere(catalogue, monkeypatch, op, one):
    import torch

    launched = []

    def load(_file, entry, _macros):
        return FakeKernel(lambda *_, **__: launched.append(entry))

    pretend_gpu(monkeypatch, load)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    variant = catalogue[op].variants["tuned"]
    case = case_of(catalogue[op], "tuned", "float16", {"N": 2, "C": 16, "H": 7, "W": 7, "layout": "nchw"})
    ctx = Context(case, None, None, GENERATOR, catalogue[op])
    ctx.tried = {"turns": 0, "whole": 1}
    launch = variant.prepare(ctx)
    inputs, outputs = catalogue[op].tensors(variant)
    found = []
    for tensors in alignments(inputs + outputs, case.values, case.dtype):
        launched.clear()
        launch(tensors)
        found.append(launched[:])
    assert found == [[one], *[THREE[op]] * 3]
