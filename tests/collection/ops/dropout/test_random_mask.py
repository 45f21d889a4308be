"""Random masks: every byte as the generators' torch twin draws it, at the sizes and addresses that break kernels."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest

from harness.collection.ops.dropout._dropout import NARROW, WIDE, Keep, unlikely
from harness.collection.ops.dropout._philox import draws, philox
from harness.collection.ops.dropout.random_mask import OP, STATE_BYTES, fresh_state
from tests.one_test import one_test
from tests.rare import rare

COMPILED = [{"N": 1000}, {"N": 2**30}]
SEED = 0x0123456789ABCDEF
CALL = 0x0FEDCBA987654321
STATEFUL = ["scalar", "packed"]
OURS = [*STATEFUL, "tuned"]
MOST_THREADS = 2**15
SIZES = [0, 1, 15, 16, 17, 255, 4097, 8191, 8192, 8193, 100_003, 16 * MOST_THREADS + 5, 2**20]


def threads_of(n):
    return min(-(-n // 16), MOST_THREADS)


def drawn(variant, elements, n, p, before=0):
    """The bytes that the variant must write for `elements` (int64 indexes) of a mask of n.

    before: Philox calls that each thread has made already.
    """
    import torch

    if variant == "tuned":
        numbers = draws(SEED, CALL, elements // 8, NARROW)
        return numbers.gather(-1, (elements % 8).unsqueeze(-1)).squeeze(-1) < Keep(p, NARROW).threshold
    threads = threads_of(n)
    if variant == "scalar":
        thread, call, place = elements % threads, elements // threads // 4, elements // threads % 4
    else:
        pack = elements // 16
        thread, call, place = pack % threads, pack // threads * 4 + elements % 16 // 4, elements % 4
    zero = torch.zeros_like(elements)
    words = torch.stack(philox([call + before, zero, thread, zero], (SEED & 0xFFFFFFFF, SEED >> 32)), -1)
    return words.gather(-1, place.unsqueeze(-1)).squeeze(-1) >> 8 < Keep(p, WIDE).threshold


def run(launch, variant, n, mask, p=0.1, state=None):
    """Fills the mask, a view of uint8 of any bytes; the call or the state is given as the variant takes it."""
    import torch

    if variant == "tuned":
        given = {"call": torch.tensor([CALL], device="cuda")}
    else:
        given = {"state": fresh_state(threads_of(n), SEED, "cuda") if state is None else state}
    launch("random_mask", variant, "bool", {"N": n, "p": p}, seed=SEED, mask=mask, **given)


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("variant", OURS)
def test_sizes(launch, placed, variant, n):
    import torch

    mask = placed(n, "uint8")
    run(launch, variant, n, mask.tensor)
    mask.assert_untouched_around()
    assert torch.equal(mask.tensor, drawn(variant, torch.arange(n, device="cuda"), n, 0.1).byte())


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0, 0.01, 0.49, 0.5, 0.51, 0.9, 0.99, 1])
@pytest.mark.parametrize("variant", OURS)
def test_probabilities(launch, placed, variant, p):
    import torch

    n = 30_011
    mask = placed(n, "uint8")
    run(launch, variant, n, mask.tensor, p)
    assert torch.equal(mask.tensor, drawn(variant, torch.arange(n, device="cuda"), n, p).byte())


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [1, 4, 8, 15])
@pytest.mark.parametrize("variant", OURS)
def test_unaligned_addresses(launch, placed, variant, offset):
    import torch

    for n in (1, 17, 20_000):
        mask = placed(n, "uint8", offset)
        run(launch, variant, n, mask.tensor)
        mask.assert_untouched_around()
        assert torch.equal(mask.tensor, drawn(variant, torch.arange(n, device="cuda"), n, 0.1).byte())


@pytest.mark.gpu
@pytest.mark.parametrize("variant", STATEFUL)
def test_the_next_launch_goes_on_where_the_last_one_stopped(launch, placed, variant):
    import torch

    # 16 elements a thread: whole calls, so that the second launch begins with a new one.
    n = 16 * MOST_THREADS
    state = fresh_state(threads_of(n), SEED, "cuda")
    elements = torch.arange(n, device="cuda")
    for before in (0, 4):
        mask = placed(n, "uint8")
        run(launch, variant, n, mask.tensor, state=state)
        assert torch.equal(mask.tensor, drawn(variant, elements, n, 0.1, before).byte())
    words = state.view(torch.int32).view(-1, STATE_BYTES // 4)
    assert bool((words[:, 0] == 8).all())
    assert bool((words[:, 10] == 4).all())


@pytest.mark.gpu
def test_words_that_are_left_are_used_first(launch, placed):
    import torch

    # One thread: the first launch leaves two words of its second call.
    state = fresh_state(1, SEED, "cuda")
    masks = [placed(6, "uint8").tensor for _ in range(2)]
    for mask in masks:
        run(launch, "scalar", 6, mask, 0.5, state)
    assert torch.equal(torch.cat(masks), drawn("scalar", torch.arange(12, device="cuda"), 12, 0.5).byte())


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("variant", OURS)
def test_more_than_2_to_31_elements(launch, placed, variant):
    import torch

    n = 2**31 + 8195
    mask = placed(n, "uint8")
    run(launch, variant, n, mask.tensor)
    mask.assert_untouched_around()
    for begin in (0, 2**31 - 5000, n - 10_000):
        elements = torch.arange(begin, begin + 10_000, device="cuda")
        assert torch.equal(mask.tensor[begin : begin + 10_000], drawn(variant, elements, n, 0.1).byte())
    assert int(mask.tensor.max()) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("variant", OURS)
def test_neighbours_places_and_calls_are_independent(launch, placed, variant):
    """Each count within 5 sigma: of ones at each of 16 places, and of pairs of ones at four distances."""
    import torch

    n, kept = 2**24, 0.7
    mask = placed(n, "uint8").tensor
    run(launch, variant, n, mask, 0.3)
    by_place = mask.view(-1, 16).sum(0, dtype=torch.int64)
    sigma = math.sqrt(n / 16 * kept * (1 - kept))
    assert bool(((by_place - n / 16 * kept).abs() < 5 * sigma).all())
    for distance in (1, 8, 16, MOST_THREADS):
        pairs = int((mask[distance:] & mask[:-distance]).sum(dtype=torch.int64))
        count = n - distance
        # A pair shares an element with two other pairs.
        sigma = math.sqrt(count * (kept**2 * (1 - kept**2) + 2 * (kept**3 - kept**4)))
        assert abs(pairs - count * kept**2) < 5 * sigma, distance


@pytest.mark.parametrize("p", [rare(0.01), 0.1, rare(0.5)])
@pytest.mark.parametrize("variant", [*OURS[:1], *map(rare, OURS[1:])])
def test_what_the_kernels_must_draw_passes_the_check(trial, variant, p):
    import torch

    n = 16 * MOST_THREADS + 40_000
    mask, complaint = drawn(variant, torch.arange(n), n, p), trial("random_mask", variant, "bool", N=n, p=p).complaint
    assert complaint(mask=mask) is None
    assert "; expected are " in complaint(mask=~mask if p != 0.5 else mask | mask.roll(1))


def test_inductor_gets_two_steps_that_it_can_fuse(trial, monkeypatch):
    """Where Inductor has no kernel for bernoulli_, as on a CPU, it calls torch's."""
    import torch

    graphs, dynamo = [], torch.compile
    keep = {"backend": lambda graph, _: graphs.append(graph) or graph.forward}
    monkeypatch.setattr(torch, "compile", lambda function, **options: dynamo(function, **(options | keep)))
    made = trial("random_mask", "compile", "bool", N=100_000)
    ctx = made.ctx
    (mask,) = OP.variants["compile"].prepare(ctx)(made.inputs)
    assert made.complaint(mask=mask) is None
    called = [node.target for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert called == [torch.rand, operator.lt]


def test_eager_passes_the_check_and_other_bytes_do_not(trial):
    import torch

    eager = trial("random_mask", "eager", "bool", N=100_000)
    mask = eager.call().mask
    assert eager.complaint(mask=mask) is None
    mask.view(torch.uint8)[5] = 2
    assert eager.complaint(mask=mask) == "mask: has bytes other than 0 and 1"


@pytest.mark.parametrize("variant", STATEFUL)
def test_a_state_is_declared_as_large_as_it_is(trial, variant):
    import torch

    for n in (1, 16, 17, 2**22):
        ctx = trial("random_mask", variant, "bool", N=n).ctx
        state = OP.variants[variant].encode(ctx, None)["state"]
        assert state.numel() == OP.variants[variant].inputs[0].bytes(ctx.case.symbols, "bool")
        words = state.view(torch.int32).view(-1, STATE_BYTES // 4)
        assert words.shape[0] == threads_of(n)
        assert words[:, 2].tolist() == list(range(threads_of(n)))


def test_a_key_has_64_bits():
    import torch

    words = fresh_state(2, 0xFFFFFFFF80000001, "cpu").view(torch.int32)
    assert words.tolist()[8:11] == [-(2**31) + 1, -1, 4]


@pytest.mark.slow  # test_eager_passes_the_check_and_other_bytes_do_not has the check
@one_test("share", [0.1, 0.5, 0.9, 0.999])
@one_test("count", [1, 64, 1000])
def test_no_mask_is_less_likely_than_the_check_says(count: int, share: float) -> None:
    """The bound is never above the true probability's logarithm, and near it where masks are very unlikely."""
    from scipy import stats

    every = np.arange(count + 1)
    below, above = stats.binom.logcdf(every, count, share), stats.binom.logsf(every - 1, count, share)
    for kept, tail in enumerate(np.where(every < count * share, below, above).tolist()):
        bound = unlikely(count, kept, share)
        assert bound <= -tail + 1e-9
        assert bound > 0.8 * -tail - 5 or tail < -700  # which scipy gives as -inf


@one_test(("kept", "share", "is_wrong"), [(3, 1.0, True), (4, 1.0, False), (0, 0.0, False), (1, 0.0, True)])
def test_what_keeps_all_or_nothing(kept: int, share: float, is_wrong: bool) -> None:
    assert (unlikely(4, kept, share) > 20) == is_wrong
