"""Decoding: a token's logits are those of its whole sequence, wrong ones are found, and work is counted in bytes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.collection.models import MODELS, llama
from harness.collection.steps.decoding import llama_decode
from harness.collection.steps.decoding._decoder import WITH_SDPA, Decoder
from harness.devices.cpu import Cpu
from harness.measure import measure
from harness.model import Case, Job, Timing
from harness.ops import Catalogue, Tensors
from tests.rare import rare

TOY = MODELS["llama_toy"]
pytestmark = pytest.mark.usefixtures("one_thread")


def case(variant: str, dtype: str = "bfloat16") -> Case:
    return Case("llama_decode", variant, dtype, (("B", 3), ("C", 5)), (("model", "llama_toy"),), device="cpu")


@pytest.mark.parametrize("operators", [None, WITH_SDPA], ids=["products", "sdpa"])
def test_logits_are_those_of_the_last_token_of_a_sequence(operators):
    """The cache is filled by decoding the tokens before, each at its place."""
    torch.manual_seed(0)
    model, tokens = llama.Llama(TOY, operators).double(), torch.randint(TOY.vocabulary, (2, 6))
    with torch.no_grad():
        caches: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for place in range(6):
            made = Decoder(model, 2, place, torch.Generator())
            for own, kept in zip((made.keys, made.values), caches, strict=True):
                for layer, one in enumerate(kept):
                    own[layer][:, :, :place] = one
            found = made(tokens[:, place])
            caches = (made.keys, made.values)
        wanted = llama.Llama(TOY).double()
        wanted.load_state_dict(model.state_dict())
        torch.testing.assert_close(found, wanted(tokens)[:, -1])


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        ("sdpa", "float16"),
        *(rare(*given) for given in (("eager", "bfloat16"), ("eager", "float16"), ("sdpa", "bfloat16"))),
    ],
)
def test_a_cpu_measures_what_it_can(variant, dtype, short_timing):
    op = Catalogue()["llama_decode"]
    found = measure(Job(case(variant, dtype), Timing(max_time=0.01)), op, Cpu())
    assert (found.status, found.error) == ("ok", None)


def given(tokens: list[int], logits: torch.Tensor | None = None) -> Tensors:
    made = Tensors(tokens=torch.tensor(tokens), before=Tensors(tokens=torch.tensor(tokens)))
    if logits is not None:
        made.logits = logits
    return made


@pytest.fixture
def ctx() -> SimpleNamespace:
    cpu = torch.device("cpu")
    symbols = SimpleNamespace(model="llama_toy", B=3, C=5)
    return SimpleNamespace(s=symbols, device=cpu, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))


def test_wrong_logits_are_told(ctx):
    with torch.inference_mode():
        right = llama_decode.decoder(ctx, WITH_SDPA)(torch.tensor([1, 2, 3]))
    assert [*llama_decode.check(ctx, given([1, 2, 3], right))] == []
    for wrong in (right * 1.1, right.roll(1, 0), torch.full_like(right, torch.nan)):
        (told,) = llama_decode.check(ctx, given([1, 2, 3], wrong))
        assert told.startswith("logits: they are off by")
    (told,) = llama_decode.check(ctx, given([1, 2, 3], right[:2]))
    assert told == "logits: their shape is (2, 99), not (3, 99)"
    assert [*llama_decode.check(ctx, given([1, 2, 3]))] == ["logits: the call made none"]


def test_a_call_that_gives_the_logits_of_earlier_tokens_is_told(ctx):
    t = given([1, 2, 3])
    with torch.inference_mode():
        model = llama_decode.decoder(ctx, WITH_SDPA)
        t.logits = model(t.tokens)
        (told,) = llama_decode.recheck(ctx, t, lambda: None)
    assert "they are off by" in told

    def again() -> None:
        t.logits = model(t.tokens)

    with torch.inference_mode():
        assert [*llama_decode.recheck(ctx, t, again)] == []


def test_all_weights_and_the_cache_are_read():
    work = Catalogue()["llama_decode"].work({"model": "llama_1b", "B": 4, "C": 100}, 2)
    cache = 2 * 16 * 8 * 64  # keys and values, layers, heads of them, numbers of a head
    assert work.read == 2 * (1_235_814_400 + 4 * 100 * cache)
    assert work.written == 2 * 4 * (cache + 128256)
    assert (work.items, work.item) == (4, "tokens")
    products = 1_235_814_400 - 2048 * 33  # all weights but those of the norms
    assert work.flops == (("case", 4 * (2 * products + 4 * 101 * 2048 * 16)),)
