"""Llama: the same as transformers' with the same weights; and its operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.collection.models import MODELS, LlamaConfig, llama
from harness.errors import UsageError

TOY = MODELS["llama_toy"]


def inputs() -> llama.LlamaBatch:
    place = torch.arange(2 * (TOY.tokens + 1)).view(2, -1)
    tokens = (7 * place**2 + 3) % TOY.vocabulary
    return llama.LlamaBatch(tokens[:, :-1], tokens[:, 1:])


def test_equals_transformers(tools):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=TOY.vocabulary, hidden_size=TOY.hidden, num_hidden_layers=TOY.layers, num_attention_heads=TOY.heads,
        num_key_value_heads=TOY.groups, intermediate_size=TOY.intermediate, rope_theta=TOY.theta,
        rms_norm_eps=llama.EPSILON, tie_word_embeddings=True, attn_implementation="eager",
    )  # fmt: skip
    ours, theirs, given = tools.seeded(llama.Llama(TOY)), transformers.LlamaForCausalLM(config).double(), inputs()
    loaded = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"lm_head.weight"}
    logits = theirs(input_ids=given.tokens).logits
    torch.testing.assert_close(ours(given.tokens), logits, rtol=0, atol=1e-5)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), given.labels.flatten())
    torch.testing.assert_close(llama.loss(ours, given), loss, rtol=1e-6, atol=0)


def test_logits_are_what_the_loss_is_of(tools):
    model, given = tools.seeded(llama.Llama(TOY)), inputs()
    wanted = torch.nn.functional.cross_entropy(model(given.tokens).flatten(0, 1), given.labels.flatten())
    torch.testing.assert_close(llama.loss(model, given), wanted)


def test_no_token_sees_a_later_one(tools):
    model, given = tools.seeded(llama.Llama(TOY)), inputs()
    later = given.tokens.clone()
    later[:, 9:] = (later[:, 9:] + 1) % TOY.vocabulary
    before, after = model(given.tokens), model(later)
    torch.testing.assert_close(after[:, :9], before[:, :9])
    assert not torch.allclose(after[:, 9:], before[:, 9:])


def test_a_token_sees_all_earlier_ones_and_where_they_stand(tools):
    """Two earlier tokens that change places change what follows: without turned keys they wouldn't, in one layer."""
    model, tokens = tools.seeded(llama.Llama(replace(TOY, layers=1))), inputs().tokens
    swapped = tokens[:, [1, 0, *range(2, TOY.tokens)]]
    assert not torch.allclose(model(swapped)[:, 2:], model(tokens)[:, 2:])


def test_scores_of_turned_vectors_depend_on_the_distance_alone(tools):
    q, k = tools.numbers(1, 1, 2, 8), tools.numbers(1, 1, 2, 8, seed=1)

    def score(place: int, other: int) -> torch.Tensor:
        turned = [
            llama.rope(q, k, *(one.double() for one in llama.angles(TOY, torch.tensor([at])))) for at in (place, other)
        ]
        return (turned[0][0] * turned[1][1]).sum(-1)

    torch.testing.assert_close(score(3, 1), score(12, 10), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(score(3, 1), score(4, 1))


def test_a_turn_is_the_product_of_complex_numbers(tools):
    x = tools.numbers(1, 3, 1, 8)
    cos, sin = llama.angles(TOY, torch.arange(3))
    turned, _ = llama.rope(x, x, cos.double(), sin.double())
    as_complex = torch.complex(*x.chunk(2, -1)) * torch.complex(cos.double(), sin.double())[:, None]
    torch.testing.assert_close(turned, torch.cat((as_complex.real, as_complex.imag), -1))
    torch.testing.assert_close(
        cos[1, 1].double().acos(), torch.tensor(TOY.theta ** (-2 / TOY.head), dtype=torch.double), rtol=1e-4, atol=0
    )


def test_heads_of_a_group_share_keys_and_values(tools):
    q, k, v = tools.numbers(2, 4, 5, 8), tools.numbers(2, 2, 5, 8, seed=1), tools.numbers(2, 2, 5, 8, seed=2)
    found = llama.attention(q, k, v)
    for head in range(4):
        alone = llama.attention(q[:, head : head + 1], k[:, head // 2 : head // 2 + 1], v[:, head // 2 : head // 2 + 1])
        torch.testing.assert_close(found[..., 8 * head : 8 * head + 8], alone)


def test_operators_are_called_for_every_layer(tools):
    operators, calls = tools.operators_counted(llama.LlamaOperators, {})
    model = llama.Llama(TOY, operators).double()
    assert torch.equal(llama.loss(model, inputs()), llama.loss(loaded(model), inputs()))
    assert calls == {
        "rms_norm": 1, "add_rms_norm": 2 * TOY.layers, "rope": TOY.layers, "swiglu": TOY.layers,
        "attention": TOY.layers, "linear_cross_entropy": 1,
    }  # fmt: skip


def loaded(model: llama.Llama) -> llama.Llama:
    made: llama.Llama = llama.Llama(TOY).double()
    made.load_state_dict(model.state_dict())
    return made


@pytest.mark.parametrize("sizes", [{"heads": 5}, {"hidden": 36}, {"groups": 3}])
def test_heads_that_do_not_fit_are_refused(sizes):
    with pytest.raises(UsageError, match="don't fit"):
        LlamaConfig(**{"hidden": 32, "heads": 4, "groups": 2} | sizes)
