"""Attention of one new token: what its kernels are compiled for, how tokens are shared, and its check."""

from __future__ import annotations

import pytest

from harness.collection.ops.chip import H200, Chip
from harness.collection.ops.llm.decode_attention import TokenParts, rule
from harness.cuda.assumed import KNOWN, assuming
from tests.collection.conftest import case_of
from tests.one_test import one_test

COMPILED = [
    *({"B": b, "H": 32, "G": 8, "T": 129, "D": d} for b in (1, 16) for d in (24, 64, 128)),
    *({"B": b, "H": 32, "G": 8, "T": 32_768 // b + 1, "D": 64} for b in (1, 16)),
    {"B": 1, "H": 3, "G": 1, "T": 100, "D": 77},
    {"B": 1, "H": 2, "G": 1, "T": 100, "D": 256},
]


@one_test("variant", ["eager", "sdpa"])
@one_test("dtype", ["bfloat16", "float16"])
def test_torchs_are_right(trial, variant, dtype):
    assert trial("decode_attention", variant, dtype, B=2, H=6, G=2, T=33, D=24).complaint_after_call() is None


def test_the_check_sees_a_token_that_is_left_out(trial):
    made = trial("decode_attention", "eager", "bfloat16", B=2, H=6, G=2, T=33, D=24)

    def without_the_last(t):
        from types import SimpleNamespace

        shorter = SimpleNamespace(q=t.q, keys=t.keys[:, :, :-1], values=t.values[:, :, :-1])
        t.y.copy_(made.ctx.op.variants["eager"].prepare(made.ctx)(shorter)[0])

    assert made.complaint_after_call(without_the_last) is not None


@one_test("sequences", [1, 3, 16, 70])
@one_test("tokens", [1, 16, 129, 4097, 32_769, 131_073])
@one_test("head", [64, 128])
def test_parts_have_all_tokens_once(sequences, tokens, head):
    sizes = {"B": sequences, "H": 32, "G": 8, "T": tokens, "D": head}
    parts = TokenParts.of(sizes, rule(sizes, H200), H200)
    assert parts.tokens % 16 == 0
    assert (parts.count - 1) * parts.tokens < tokens <= parts.count * parts.tokens
    assert parts.grid(sizes)[0] == sequences * 8 * parts.count
    assert parts.count == 1 or sequences * 8 * parts.count <= H200.multiprocessors * parts.blocks


@one_test(
    ("arch", "sequences", "plan"),
    [("sm_90", 16, (4, 4, 2)), ("sm_89", 16, (4, 2, 2)), ("sm_90", 2, (4, 4, 2))],
)
def test_more_of_long_contexts_is_under_way_where_there_is_room(arch, sequences, plan):
    with assuming(KNOWN[arch]):
        made = rule({"B": sequences, "H": 32, "G": 8, "T": 32_768 // sequences, "D": 64}, Chip.current())
    assert tuple(made.values()) == plan


@one_test(
    ("arch", "tokens", "plan", "parts"),
    [
        *(("sm_90", tokens, (8, 1, 2), 1) for tokens in (1, 129, 256)),
        ("sm_90", 257, (8, 3, 1), 2),
        ("sm_90", 32_768, (8, 3, 1), 16),
        ("sm_89", 129, (4, 2, 2), 2),
        ("sm_89", 32_768, (4, 2, 2), 35),
    ],
)
def test_one_sequence_has_few_parts_and_a_short_context_one(arch, tokens, plan, parts):
    sizes = {"B": 1, "H": 32, "G": 8, "T": tokens, "D": 64}
    with assuming(KNOWN[arch]):
        chip = Chip.current()
        made = rule(sizes, chip)
    assert tuple(made.values()) == plan
    assert TokenParts.of(sizes, made, chip).count == parts


@pytest.mark.parametrize(("variant", "sizes"), [("eager", (3, 2, 64)), ("tuned", (3, 2, 64)), ("tuned", (2, 1, 512))])
def test_heads_that_can_not_be_shared_or_are_too_long_are_told(trial, variant, sizes):
    op = trial("decode_attention", "eager", "bfloat16", B=1, H=1, G=1, T=2, D=8).ctx.op
    heads, groups, head = sizes
    case = case_of(op, variant, "bfloat16", {"B": 1, "H": heads, "G": groups, "T": 5, "D": head})
    assert op.variants[variant].unsupported(case)


@pytest.mark.parametrize("arch", KNOWN)
@pytest.mark.parametrize("head", [8, 24, 64, 72, 104, 128])
def test_the_rule_gives_plans_that_a_search_may_take(catalogue, arch, head):
    tuning = catalogue["decode_attention"].variants["tuned"].tuning
    with assuming(KNOWN[arch]):
        for sequences, tokens in ((1, 128), (1, 32_768), (16, 2048), (256, 4096)):
            values = {"B": sequences, "H": 32, "G": 8, "T": tokens, "D": head}
            case = case_of(catalogue["decode_attention"], "tuned", "bfloat16", values)
            assert tuning.obstacle(case, tuning.rule(case)) is None, values


@pytest.mark.parametrize("nothing", ["B", "T"])
def test_there_is_no_plan_for_no_tokens(nothing):
    assert rule({"B": 1, "H": 32, "G": 8, "T": 128, "D": 64} | {nothing: 0}, H200) is None
