"""Training steps of all models: batches from a seed, losses that fall, and what torch.compile makes of them."""

from __future__ import annotations

import pytest
import torch

from harness.collection.models import MODELS, bert
from tests.rare import rare

TOYS = ("resnet_toy", "bert_toy", "swin_toy", "llama_toy")


def given(toy, size=4, seed=0):
    return toy.module.batch(toy.config, size, torch.Generator().manual_seed(seed), "cpu")


def test_a_seed_makes_a_batch(toy):
    first, again, other = given(toy), given(toy), given(toy, seed=1)
    assert all(one.equal(two) for one, two in zip(first, again, strict=True))
    assert not any(one.equal(two) for one, two in zip(first, other, strict=True))
    assert all(len(one) == 4 and one.is_contiguous() for one in first)


@pytest.mark.parametrize(
    ("toy", "half"),
    [
        *((pytest.param if name == "bert_toy" else rare)(name, False) for name in TOYS),
        *(("llama_toy", True), *(rare(name, True) for name in TOYS if name != "llama_toy")),
    ],
    indirect=["toy"],
)
def test_steps_lower_the_loss(toy, half):
    torch.manual_seed(0)
    model, batch, losses = toy.kind(toy.config), given(toy), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = toy.module.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow  # the test above lowers the loss, nn/test_models.py has halves
def test_every_parameter_has_a_gradient_in_half_precision(toy):
    torch.manual_seed(0)
    model, batch = toy.kind(toy.config).bfloat16(), given(toy)
    batch = batch._replace(**{name: one.bfloat16() for name, one in batch._asdict().items() if one.is_floating_point()})
    toy.module.loss(model, batch).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@pytest.mark.slow  # steps/training/test_compiled_gradients.py has a BERT in one graph
def test_a_model_compiles_to_one_graph(toy, unmeasured_guards):
    torch.manual_seed(0)
    torch.compiler.reset()
    model, batch = toy.kind(toy.config).eval(), given(toy)
    compiled = torch.compile(toy.module.loss, backend="eager", fullgraph=True)
    assert compiled(model, batch).item() == pytest.approx(toy.module.loss(model, batch).item(), rel=1e-6)


def test_a_bert_batch_is_consistent():
    config = MODELS["bert_base"]
    batch = bert.batch(config, 64, torch.Generator().manual_seed(0), "cpu")
    lengths = batch.mask.sum(1)
    assert batch.mask.equal(torch.arange(config.tokens) < lengths[:, None])
    assert int(lengths.min()) >= config.tokens // 2
    assert batch.tokens.eq(bert.PADDING).equal(~batch.mask)
    assert set(batch.follows.tolist()) == {0, 1}
    assert not batch.types[~batch.mask].any()
    predicted = batch.labels != bert.IGNORED
    assert predicted.sum(1).equal((0.15 * lengths).ceil().clamp(max=config.predictions).long())
    assert batch.mask.gather(1, batch.positions)[predicted].all()
    assert all(len(set(row)) == config.predictions for row in batch.positions.tolist())
