"""Kernels of language models on a GPU: our variants against float64, at lengths and addresses that break kernels."""

from __future__ import annotations

import itertools

import pytest
import torch

from harness import check
from harness.collection.ops.llm import embedding_grad
from harness.collection.ops.rows import _add_norm_grad

pytestmark = pytest.mark.gpu
DTYPES = ("float32", "float16", "bfloat16")
ROWS = [{"M": m, "N": n} for m, n in ((1, 1), (3, 77), (1, 8192), (700, 128), (300, 4096), (33, 14_336), (5, 100_000))]
LOGITS = [
    {"M": m, "V": v} for m, v in ((1, 1), (5, 5), (3, 128_256), (300, 1001), (40, 50_257), (2, 262_144), (3, 600_000))
]
HALVES = [{"M": m, "H": h} for m, h in ((1, 1), (3, 77), (700, 128), (130, 14_336))]
HEADS = [
    dict(zip("TQKDP", sizes, strict=True))
    for sizes in ((1, 1, 1, 2, 1), (7, 3, 1, 6, 5), (300, 32, 8, 128, 700), (130, 40, 40, 64, 99))
]
TOKENS = [
    dict(zip("TVH", sizes, strict=True)) for sizes in ((1, 1, 1), (300, 7, 77), (5000, 3, 4096), (4000, 50_257, 264))
]
SIZES = {
    "add_rms_norm": ROWS,
    "add_rms_norm_grad": ROWS,
    "add_rms_norm_quantize": ROWS,
    "swiglu": HALVES,
    "swiglu_grad": HALVES,
    "rope": HEADS,
    "cross_entropy": LOGITS,
    "cross_entropy_grad": LOGITS,
    "cross_entropy_in_place": LOGITS,
    "embedding_grad": TOKENS,
}


def complaint(made, offset=0):
    """What is wrong with a call whose tensors of floats begin `offset` elements past 16 bytes."""
    op, variant = made.ctx.op, made.ctx.op.variants[made.ctx.case.variant]
    if variant.unsupported and variant.unsupported(made.ctx.case):
        return None
    tensors = check.new_set(made.ctx, variant, made.inputs, is_aligned=not offset)
    variant.prepare(made.ctx)(tensors)
    torch.cuda.synchronize()
    assert op.outputs
    return check.complaint(made.ctx, variant, made.inputs, tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", SIZES)
def test_our_variants_are_right(catalogue, trial, op, dtype):
    ours = [variant.name for variant in catalogue[op].variants.values() if not variant.is_library]
    choices = [[{name: value} for value in choice.values] for name, choice in catalogue[op].choices.items()]
    found = {}
    for variant, sizes, chosen in itertools.product(ours, SIZES[op], itertools.product(*choices)):
        values = sizes | {name: value for one in chosen for name, value in one.items()}
        for offset in (0, 1):
            made = trial(op, variant, dtype, device="cuda", **values)
            found[variant, str(values), offset] = complaint(made, offset)
    assert {case: wrong for case, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_ways_of_the_gradient_of_rows_are_right(trial, monkeypatch, dtype):
    for most, way in ((0, "stages"), (2**40, "few")):
        monkeypatch.setattr(_add_norm_grad, "_FEW_BYTES", most)
        for sizes in (*ROWS, {"M": 261, "N": 264}, {"M": 1000, "N": 4096}, {"M": 1, "N": 8}):
            made = trial("add_rms_norm_grad", "tuned", dtype, device="cuda", **sizes)
            plan = made.ctx.op.variants["tuned"].tuning.rule(made.ctx.case)
            assert plan is None or plan["way"] == way
            assert complaint(made) is None, (way, sizes)


@pytest.mark.parametrize(
    ("op", "values"),
    [
        ("swiglu_grad", {"M": 2**17 + 1, "H": 2**14, "layout": "separate"}),
        ("rope", {"T": 2**19 + 1, "Q": 32, "K": 1, "D": 128, "P": 64}),
        ("cross_entropy_in_place", {"M": 2**14 + 1, "V": 2**17}),
        ("cross_entropy_grad", {"M": 2**14 + 1, "V": 2**17}),
        ("add_rms_norm", {"M": 2**18 + 1, "N": 2**13}),
        ("embedding_grad", {"T": 2**17 + 1, "V": 2**17 + 1, "H": 2**14}),
    ],
)
@pytest.mark.alone
def test_more_than_2_to_the_31_elements(trial, op, values):
    assert complaint(trial(op, "tuned", "bfloat16", device="cuda", **values)) is None


def test_results_repeat_bit_by_bit(trial):
    for op, values in (
        ("embedding_grad", {"T": 20_000, "V": 1000, "H": 512}),
        ("add_rms_norm_grad", {"M": 5000, "N": 4096}),
        ("add_rms_norm_grad", {"M": 200, "N": 4096}),  # few rows
        ("cross_entropy", {"M": 5000, "V": 4096}),
    ):
        made = trial(op, "tuned", "float32", device="cuda", **values)
        first, second = made.call(), made.call()
        for output in made.ctx.op.outputs:
            assert torch.equal(getattr(first, output.name), getattr(second, output.name)), (op, output.name)


def test_a_call_on_another_stream_is_ordered_after_what_it_reads(trial):
    made = trial("embedding_grad", "tuned", "bfloat16", device="cuda", T=20_000, V=5000, H=1024)
    variant = made.ctx.op.variants["tuned"]
    launch = variant.prepare(made.ctx)
    tensors = check.new_set(made.ctx, variant, made.inputs)
    wanted = tensors.dy.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensors.dy.zero_()
        torch.cuda._sleep(10_000_000)
        tensors.dy.copy_(wanted)
        launch(tensors)
    stream.synchronize()
    assert check.complaint(made.ctx, variant, made.inputs, tensors) is None


def test_one_token_for_all_ids_is_summed_by_windows(trial):
    made = trial("embedding_grad", "tuned", "float32", device="cuda", T=65_536, V=10, H=256)
    made.inputs.ids.fill_(3)
    assert embedding_grad.window_of(65_536) < 65_536
    assert complaint(made) is None


@pytest.mark.parametrize("padding", ["none", "first"])
def test_sums_of_an_embedding_are_right_whatever_the_ids(trial, padding):
    tokens = torch.arange(5000, device="cuda")
    every = {"different": tokens.flip(0), "many of each": tokens // 700, "in turn": tokens % 7, "ignored": 0 * tokens}
    for name, ids in every.items():
        made = trial("embedding_grad", "tuned", "bfloat16", device="cuda", T=5000, V=5000, H=4096, padding=padding)
        made.inputs.ids.copy_(ids)
        assert complaint(made) is None, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("early", [0, 0.5])
def test_rows_without_tokens_get_their_zeros_in_either_launch(trial, monkeypatch, dtype, early):
    monkeypatch.setattr(embedding_grad, "early_rows", lambda _tokens, vocabulary, _row: int(vocabulary * early))
    for tokens, vocabulary, columns in ((300, 50_257, 264), (5000, 5000, 77), (40_000, 32_000, 8)):
        made = trial("embedding_grad", "tuned", dtype, device="cuda", T=tokens, V=vocabulary, H=columns)
        assert complaint(made) is None, tokens


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_grad", "cross_entropy_in_place"])
def test_targets_that_are_no_columns_are_not_read(trial, op):
    made = trial(op, "tuned", "bfloat16", device="cuda", M=4, V=1000)
    made.inputs.targets[:] = torch.tensor([-100, 10**12, -5, 1000])
    variant = made.ctx.op.variants["tuned"]
    tensors = check.new_set(made.ctx, variant, made.inputs)
    variant.prepare(made.ctx)(tensors)
    torch.cuda.synchronize()
    if op == "cross_entropy_in_place":
        assert tensors.losses.isnan().tolist() == [False, True, True, True]
