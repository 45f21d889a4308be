"""What the models cost, by their configurations, against the models themselves and against torch's own count."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.collection.models import MODELS, BertConfig, LlamaConfig, SwinConfig, bert, resnet, swin
from harness.collection.ops.lists import _models
from harness.errors import UsageError
from tests.one_test import one_test
from tests.rare import rare

PARAMETERS = {
    "resnet50": 25_557_032,
    "bert_base": 110_106_428,
    "swin_tiny": 28_288_354,
    "swin_small": 49_606_258,
    "swin_base": 87_768_224,
    "swin_large": 196_532_476,
    "llama_1b": 1_235_814_400,
}
MADE = {"resnet50", "bert_base", "swin_tiny"}
"""Models that the lists for optimizers need."""
PUBLISHED = {"resnet50": 4.09e9, "swin_tiny": 4.5e9, "swin_small": 8.7e9, "swin_base": 15.4e9, "swin_large": 34.5e9}


@cache
def on_meta(kind, config):
    with torch.device("meta"):
        return kind(config)


@pytest.mark.parametrize(
    "named", [rare(name) if name in PARAMETERS and name not in MADE else name for name in sorted(MODELS)], indirect=True
)
def test_parameters_are_those_of_the_model(named):
    assert sum(p.numel() for p in on_meta(named.kind, named.config).parameters()) == named.config.parameters()


def test_parameters_are_the_published_number():
    assert {name: MODELS[name].parameters() for name in PARAMETERS} == PARAMETERS


@pytest.mark.parametrize("named", [name if "toy" in name else rare(name) for name in sorted(MODELS)], indirect=True)
def test_operations_are_those_that_torch_counts(named):
    model, size = on_meta(named.kind, named.config), 2
    given = named.module.batch(named.config, size, torch.Generator(), "meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        named.module.loss(model, given)
    assert counter.get_total_flops() == size * (named.config.flops() + of_later_tokens(named.config))


def of_later_tokens(config):
    """Operations of a plain causal attention that nobody needs: of scores and values of later tokens."""
    if not isinstance(config, LlamaConfig):
        return 0
    return 2 * config.layers * config.hidden * config.tokens * (config.tokens - 1)


def test_a_token_behind_others_costs_what_the_last_one_of_a_sequence_does():
    config = MODELS["llama_toy"]
    shorter = replace(config, tokens=config.tokens - 1)
    assert config.flops_of_token(config.tokens - 1) == config.flops() - shorter.flops()


@one_test("name", PUBLISHED)
def test_multiplications_are_the_published_number(name):
    assert MODELS[name].flops() / 2 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_predictions_of_all_tokens_cost_as_many_products():
    config = MODELS["bert_toy"]
    every = replace(config, predictions=config.tokens)
    of_a_prediction = 2 * (config.hidden**2 + config.hidden * config.vocabulary)
    assert every.flops() - config.flops() == (config.tokens - config.predictions) * of_a_prediction


@pytest.mark.parametrize(
    ("listed", "kind", "name", "prefix"),
    [
        ("resnet50", resnet.ResNet, "resnet50", ""),
        ("swin_t", swin.Swin, "swin_tiny", ""),
        ("bert_base", bert.BertForPreTraining, "bert_base", "bert."),
    ],
)
def test_names_and_shapes_are_those_of_the_lists_for_optimizers(listed, kind, name, prefix):
    parameters = on_meta(kind, MODELS[name]).named_parameters()
    ours = [(name.removeprefix(prefix), tuple(p.shape)) for name, p in parameters if name.startswith(prefix)]
    assert ours == [*_models.tensors(listed)]


@one_test(
    ("make", "message"),
    [
        (lambda: SwinConfig(image=256), "windows of 7 can't tile"),
        (lambda: BertConfig(tokens=513), "513 tokens, but 512 positions"),
        (lambda: BertConfig(tokens=16), "20 predictions in 16 tokens"),
        (lambda: BertConfig(heads=7), "vectors of 768 can't be shared by 7 heads"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_sizes_need_no_torch():
    program = "import sys; from harness.collection.models import MODELS; [c.flops() for c in MODELS.values()]"
    program += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
