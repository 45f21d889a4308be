"""`patch` and rotary embeddings: attention written as in transformers' decoders, and transformers' own."""

from __future__ import annotations

import copy
import functools
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

from harness import nn as ours
from harness.collection.nn import _patched_rotary
from tests.one_test import one_test

WIDTH, HEADS, KEYS = 32, 4, 2


@pytest.fixture(autouse=True)
def one(one_thread):
    torch.manual_seed(0)


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def decorated(function):
    @functools.wraps(function)
    def around(*args, **kwargs):
        kwargs.pop("old", None)
        return function(*args, **kwargs)

    return around


class Angles(nn.Module):  # type: ignore[misc] # torch has no types
    """Cosines and sines of positions, as LlamaRotaryEmbedding gives them."""

    def __init__(self, width=WIDTH // HEADS):
        super().__init__()
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, x, position_ids):
        found = position_ids[..., None].float() * self.inv_freq
        both = self.both(found)
        return both.cos().to(x.dtype), both.sin().to(x.dtype)

    def both(self, found):
        return torch.cat((found, found), -1)


class Neighbours(Angles):
    def both(self, found):
        return found.repeat_interleave(2, -1)


class Attention(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self):
        super().__init__()
        self.head_dim = WIDTH // HEADS
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, KEYS * self.head_dim) for _ in range(2))

    @decorated
    def forward(self, x, *, angles, scale=1.0):
        q, k, v = (
            made(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for made in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *angles)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scale)
        return y.transpose(1, 2).reshape(x.shape)


class Decoder(nn.Module):  # type: ignore[misc] # torch has no types
    def __init__(self, attention=Attention, angles=Angles):
        super().__init__()
        self.layers = nn.ModuleList(attention() for _ in range(2))
        self.angles = angles()

    def forward(self, x, positions=None):
        positions = torch.arange(x.shape[1])[None] if positions is None else positions
        angles = self.angles(x, positions)
        for layer in self.layers:
            x = x + layer(x, angles=angles, old=None)
        return x


def alike(patched, plain, *given):
    for model in (patched, plain):
        model.zero_grad()
    with mock.patch.object(_patched_rotary, "rope", wraps=_patched_rotary.rope) as rope:
        y, want = patched(*given), plain(*given)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    y.square().mean().backward()
    want.square().mean().backward()
    for own, other in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6)
    return rope.call_count


def test_attention_runs_by_rope_in_this_model_alone_and_is_undone():
    model = Decoder()
    plain = copy.deepcopy(model)
    done = ours.patch(model)
    told = {(one.name, one.was, one.now) for one in done.swapped}
    assert told == {(f"layers.{n}", "Attention with apply_rotary_pos_emb", "nn.rope") for n in (0, 1)}
    assert type(model.layers[0]) is type(model.layers[1])
    x = torch.randn(2, 5, WIDTH)
    assert alike(model, plain, x) == 2
    assert alike(model, plain, x, torch.tensor([[3, 4, 5, 6, 7], [0, 1, 2, 0, 1]])) == 2
    assert alike(copy.deepcopy(model), plain, x) == 2
    assert not ours.patch(model).swapped
    done.undo()
    assert type(model.layers[0]) is Attention
    assert alike(model, plain, x) == 0


@pytest.mark.slow
def test_a_compiler_takes_the_patched_forward():
    model = Decoder()
    plain = copy.deepcopy(model)
    ours.patch(model)
    x = torch.randn(2, 5, WIDTH)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain(x), rtol=1e-5, atol=1e-5)


def q_and_k(**more):
    q, k = torch.randn(2, HEADS, 5, 8, **more), torch.randn(2, KEYS, 5, 8, **more)
    return q, k, *Angles()(q, torch.arange(5)[None])


def test_layers_of_a_forward_share_their_tables():
    made = _patched_rotary._Tables()
    q, _, cos, sin = q_and_k()
    first = made(len(q), cos, sin)
    assert [tuple(one.shape) for one in first] == [(5, 4), (5, 4), (10,)]
    assert first[2].tolist() == [0, 1, 2, 3, 4] * 2
    assert made(len(q), cos, sin) is first
    assert made(3, cos, sin) is not first
    first = made(len(q), cos, sin)
    cos.mul_(1)  # in place
    assert made(len(q), cos, sin) is not first
    assert made(len(q), cos.clone(), sin) is not first
    with torch.inference_mode():
        assert made(len(q), cos, sin) == (cos, sin, None)
        q, _, cos, sin = q_and_k()
    assert made(len(q), cos, sin) == (cos, sin, None)


def test_tables_of_another_forward_arent_taken():
    """Cosines of a forward that is over may have had the address that new ones have."""
    model = Decoder()
    plain = copy.deepcopy(model)
    ours.patch(model)
    x = torch.randn(2, 5, WIDTH)
    for first in range(4):
        assert alike(model, plain, x, torch.arange(first, first + 5)[None]) == 2


def test_tokens_may_stand_before_heads():
    q, k, cos, sin = q_and_k()
    rotated = _patched_rotary._rotating(apply_rotary_pos_emb)
    want = apply_rotary_pos_emb(q, k, cos, sin)
    with mock.patch.object(_patched_rotary, "rope", wraps=_patched_rotary.rope) as rope:
        got = rotated(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
    assert rope.call_count == 1
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.transpose(1, 2), other)


@pytest.mark.parametrize(
    "given",
    [
        lambda q, k, cos, sin: ((q, k, cos, sin, 1), {}),  # position_ids of older versions, or the dimension
        lambda q, k, cos, sin: ((q, k, cos[..., :4], sin[..., :4]), {}),  # half of a head
        lambda q, k, cos, sin: ((q, k, cos[:, :1], sin[:, :1]), {}),  # one position for all tokens
        lambda q, k, cos, sin: ((q.half(), k.half(), cos, sin), {}),  # the results would be of float32
        lambda q, k, cos, sin: ((q, k[:, :, 1:], cos, sin), {}),
        lambda q, k, cos, sin: ((q, k, cos[None], sin[None]), {"unsqueeze_dim": 1}),
        lambda q, k, cos, sin: ((q, k, cos.clone().requires_grad_(), sin), {}),
        lambda q, k, cos, sin: ((q, k, cos, sin), {"unsqueeze_dim": -2}),
    ],
)
def test_what_rope_cant_do_alike_the_given_function_does(given):
    args, more = given(*q_and_k())
    stub = mock.Mock(return_value="the given function's")
    with mock.patch.object(_patched_rotary, "rope") as rope:
        assert _patched_rotary._rotating(stub)(*args, **more) == "the given function's"
    assert not rope.called
    stub.assert_called_once_with(*args, **more)


def test_under_autocast_rope_hands_on_halves():
    q, k, cos, sin = q_and_k()
    rotated = _patched_rotary._rotating(apply_rotary_pos_emb)
    with torch.autocast("cpu", torch.bfloat16):
        made = rotated(q.bfloat16(), k.bfloat16(), cos, sin)
    assert {one.dtype for one in made} == {torch.bfloat16}
    torch.testing.assert_close(made[0].float(), apply_rotary_pos_emb(q, k, cos, sin)[0], rtol=2e-2, atol=2e-2)


class WithHook(Attention):
    def __init__(self):
        super().__init__()
        self.forward = functools.partial(Attention.forward, self)


class Halved(Attention):
    """Its heads are twice as wide as the angles."""

    def __init__(self):
        super().__init__()
        self.head_dim = 2 * WIDTH // HEADS


@one_test(
    ("attention", "angles", "why"),
    [
        (Attention, Neighbours, "its angles don't repeat in the second half"),
        (Attention, nn.Identity, "no module has inv_freq"),
        (Attention, lambda: nn.ParameterDict({"inv_freq": torch.ones(2)}), "its angles can't be tried"),
        (Halved, Angles, "it rotates 8 of a head's 16 elements, ours all of them"),
        (WithHook, Angles, "its forward was replaced by somebody"),
    ],
)
def test_other_rotary_embeddings_stay_and_have_a_reason(attention, angles, why):
    done = ours.patch(Decoder(attention, angles))
    assert done.swapped == []
    assert [one.name for one in done.left] == ["layers.0", "layers.1"]
    assert all(why in one.why for one in done.left)


def test_functions_that_hold_each_other_are_no_endless_search():
    def one():
        return other

    def other():
        return one

    assert _patched_rotary._used(one) is None


def test_another_function_of_that_name_stays(monkeypatch):
    def reversed_(q, k, cos, sin, unsqueeze_dim=1):
        return apply_rotary(q, k, cos, -sin, unsqueeze_dim)

    apply_rotary = apply_rotary_pos_emb
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", reversed_)
    assert {one.why for one in ours.patch(Decoder()).left} == {"its rotary embedding computes something else"}
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", lambda q: q)
    assert {one.why for one in ours.patch(Decoder()).left} == {"its rotary embedding can't be tried: TypeError"}


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2"])
def test_decoders_of_transformers_run_by_rope(kind):
    transformers = pytest.importorskip("transformers", reason="transformers isn't installed")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=50, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=KEYS, max_position_embeddings=64,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}Model")(config)
    plain = copy.deepcopy(model)
    done = ours.patch(model)
    # Its attention wants positions, without which its projections aren't tried.
    assert all("parts of one product" in one.why for one in done.left)
    assert sum(one.now == "nn.rope" for one in done.swapped) == 2
    tokens = torch.randint(0, 50, (2, 7))
    positions = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6]])
    for more in ({}, {"position_ids": positions}):
        want = plain(tokens, **more).last_hidden_state
        torch.testing.assert_close(model(tokens, **more).last_hidden_state, want, rtol=1e-4, atol=1e-4)
