"""BERT: the same as transformers' with the same weights; and its operators."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from harness.collection.models import MODELS, bert

TOY = replace(MODELS["bert_toy"], dropout=0.0)


def inputs():
    """Two sequences, the second of them with padding; a token beside it is the padding's as well."""
    place = torch.arange(2 * TOY.tokens).view(2, TOY.tokens)
    mask = place % TOY.tokens < torch.tensor([[TOY.tokens], [11]])
    tokens = ((7 * place**2 + 3) % TOY.vocabulary).where(mask, bert.PADDING)
    tokens[0, 3] = bert.PADDING
    positions = torch.tensor([[2, 9, 0, 15], [5, 1, 13, 12]])
    labels = torch.tensor([[5, 98, 7, 1], [3, 44, bert.IGNORED, bert.IGNORED]])
    return bert.BertBatch(tokens, (place % TOY.tokens > 6).long(), mask, positions, labels, torch.tensor([1, 0]))


def transformers_model(config, attention):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertConfig(
        vocab_size=config.vocabulary, hidden_size=config.hidden, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, intermediate_size=config.intermediate,
        max_position_embeddings=config.positions, type_vocab_size=config.types,
        hidden_dropout_prob=config.dropout, attention_probs_dropout_prob=config.dropout,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.BertForPreTraining(theirs).double().train()


@pytest.mark.parametrize(("attention", "dropout"), [("eager", 0.0), ("sdpa", 0.0), ("eager", 0.1)])
def test_equals_transformers(tools, attention, dropout):
    config, given = replace(TOY, dropout=dropout), inputs()
    ours, theirs = tools.seeded(bert.BertForPreTraining(config)), transformers_model(config, attention)
    loaded = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    torch.manual_seed(0)
    loss = bert.loss(ours, given)
    labels = torch.full_like(given.tokens, bert.IGNORED).scatter(1, given.positions, given.labels)
    torch.manual_seed(0)
    expected = theirs(
        input_ids=given.tokens, token_type_ids=given.types, attention_mask=given.mask.long(), labels=labels,
        next_sentence_label=given.follows,
    )  # fmt: skip
    slopes = tools.gradients(ours, loss)
    tools.assert_same(slopes | {"loss": loss}, tools.gradients(theirs, expected.loss) | {"loss": expected.loss})
    if not dropout:
        words, follows = ours(given.tokens, given.types, given.mask)
        theirs_of_both = (expected.prediction_logits, expected.seq_relationship_logits)
        tools.assert_same(dict(enumerate((words, follows))), dict(enumerate(theirs_of_both)))


def test_fingerprint(tools):
    model, given = tools.seeded(bert.BertForPreTraining(TOY)), inputs()
    loss = bert.loss(model, given)
    slopes = tools.gradients(model, loss)
    names = (
        "bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.0.attention.self.key.weight",
        "bert.encoder.layer.1.output.LayerNorm.bias",
    )
    some, outputs = [slopes[name] for name in names], model(*given[:4])
    expected_outputs = [-0.973949338003, 28.6302975172, 0.139421945952, 0.898663001093]
    expected = [6.78768451139, *expected_outputs, 2.99060308159, 0.861044455392, 0.745172157871]
    assert tools.fingerprint(outputs, loss, some) == pytest.approx(expected, rel=1e-9)


def test_only_predicted_tokens_go_through_the_head(tools):
    model, given = tools.seeded(bert.BertForPreTraining(TOY)), inputs()
    every, _ = model(*given[:3])
    some, _ = model(*given[:4])
    picked = torch.stack([row[places] for row, places in zip(every, given.positions, strict=True)])
    tools.assert_same({"": some}, {"": picked})


def test_padding_changes_nothing(tools):
    model, given = tools.seeded(bert.BertForPreTraining(TOY)), inputs()
    words, follows = model(given.tokens[1:], given.types[1:], given.mask[1:])
    short_words, short_follows = model(given.tokens[1:, :11], given.types[1:, :11])
    tools.assert_same({"words": words[:, :11], "": follows}, {"words": short_words, "": short_follows})


def attention(q, k, v, mask, p):
    return functional.scaled_dot_product_attention(q, k, v, mask, p).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("fuse", [False, True])
def test_operators_can_be_swapped(tools, fuse):
    given, plain = inputs(), tools.seeded(bert.BertForPreTraining(TOY))
    operators, calls = tools.operators_counted(bert.BertOperators, {"attention": attention} if fuse else {})
    swapped = tools.seeded(bert.BertForPreTraining(TOY, operators))
    losses = [bert.loss(model, given) for model in (plain, swapped)]
    tools.assert_same(*(tools.gradients(model, loss) for model, loss in zip((plain, swapped), losses, strict=True)))
    layers = TOY.layers
    parts = {"attention": layers, "dropout": 1} if fuse else {"softmax": layers, "dropout": 1 + layers}
    ends = {"layer_norm": 2 + 2 * layers, "gelu": 1 + layers, "dense_dropout_add": 2 * layers}
    assert calls == parts | ends


def test_dropout_is_for_training_only():
    torch.manual_seed(0)
    model, given = bert.BertForPreTraining(MODELS["bert_toy"]), inputs()
    assert bert.loss(model, given) != bert.loss(model, given)
    assert bert.loss(model.eval(), given) == bert.loss(model, given)
