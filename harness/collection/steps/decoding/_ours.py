"""Decoding by our kernels.

For few sequences a layer is five kernels, whose time the bytes of their weights, or of the cache, bound:

    qkv_few_rows      RMSNorm, three products, RoPE; keys and values go to the cache
    decode_attention  of the new token to the cache
    linear_few_rows   the product behind attention, added to the residual
    linear_few_rows   RMSNorm, the products of the gate and of up, SwiGLU
    linear_few_rows   the product behind it, added to the residual

and a last one makes logits. Each begins while the one before still runs (`Chain`). For more sequences torch makes the
products, and our kernels do the rest.

What to expect of a Llama 1B on an H200, for one sequence: a layer's weights are 12.6, 8.4, 67.1 and 33.6 MB, the head's
525 MB: at 4.7 TB/s 2.7, 1.8, 14.3, 7.1 and 112 us, with 16 layers 527 us. A kernel that waits for the one before it
loses the time until memory is at its full rate, 81 times in a step. Kernels of a chain begin early to lose less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import cuda
from harness.collection.ops.llm import decode_attention, linear_few_rows, qkv_few_rows
from harness.collection.steps.decoding._chain import Chain
from harness.model import Case, Value
from harness.ops import Context, Launch, Op, Tensors

if TYPE_CHECKING:
    import torch

    from harness.collection.models.llama import LlamaOperators
    from harness.collection.steps.decoding._decoder import Decoder

MOST = 8
"""Sequences whose products our kernels make: rows of x that one tile of the tensor cores has.

Beyond that, x takes the shared memory that weights would be under way to: 16 rows of Llama 1B and the norm's weights
take 70 KB, and the 8192 columns behind the gates don't fit at all, so weights are read once for each eight rows.
"""
_Call = Callable[[], None]


def _of_op(ctx: Context, op: Op, sizes: dict[str, int], choices: dict[str, Value] | None = None) -> Context:
    """What the `tuned` of an op is prepared with, for the type and device of a step's case."""
    chosen = choices or {name: choice.usual for name, choice in op.choices.items()}
    case = Case(op.name, "tuned", ctx.case.dtype, tuple(sizes.items()), tuple(chosen.items()), device=ctx.case.device)
    return Context(case, ctx.dtype, ctx.device, ctx.generator, op)


class FewSequences:
    """Tokens (B) to logits (B, V), as `Decoder` makes them, for up to `MOST` sequences. Calls share their result.

    calls: the launches behind the embedding, one by one.
    """

    def __init__(self, ctx: Context, decoder: Decoder) -> None:
        import torch

        self._ctx, self._decoder = ctx, decoder
        model = decoder.model
        self._config, self.weight_bytes = model.config, decoder.weight_bytes
        size, options = ctx.s.B, {"dtype": ctx.dtype, "device": ctx.device}
        self._embedding = model.head
        self._x = torch.zeros((size, self._config.hidden), **options)
        self._between = torch.empty((size, self._config.intermediate), **options)
        self._q = torch.empty((size, self._config.heads, self._config.head), **options)
        self._attended = torch.empty_like(self._x)
        self._logits = torch.empty((size, self._config.vocabulary), **options)
        self._empty = torch.empty(0, **options)
        self.calls = self._calls()
        self._run: _Call = partial(_each, self.calls)
        if ctx.device.type == "cuda" and cuda.has_clusters():  # GPUs that have clusters have dependent launches
            with torch.inference_mode():
                self._run = Chain.of(self._run)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """One more token of each sequence."""
        import torch

        torch.index_select(self._embedding, 0, tokens, out=self._x)
        self._run()
        return self._logits

    def _calls(self) -> list[_Call]:
        config, model = self._config, self._decoder.model
        heads = {"H": config.heads, "G": config.groups, "D": config.head}
        tokens = self._ctx.s.C + 1
        sizes = {"M": self._ctx.s.B, "E": config.hidden, **heads}
        qkv = qkv_few_rows.prepared(_of_op(self._ctx, qkv_few_rows.OP, sizes), tokens * config.head)
        attention = decode_attention.tuned(
            _of_op(self._ctx, decode_attention.OP, {"B": self._ctx.s.B, **heads, "T": tokens})
        )
        behind = self._linear("add", config.hidden, config.hidden)
        gates = self._linear("gates", config.hidden, config.intermediate)
        down = self._linear("add", config.intermediate, config.hidden)
        cos, sin = (table.expand(self._ctx.s.B, -1).contiguous() for table in self._decoder.angles)
        calls: list[_Call] = []

        def then(launch: Launch, **tensors: Any) -> None:
            given = Tensors(**tensors)
            calls.append(lambda: launch(given))

        for layer, keys, values in zip(model.model["layers"], self._decoder.keys, self._decoder.values, strict=True):
            weights = {f"{name}_weight": layer.self_attn[f"{name}_proj"].weight.detach() for name in "qkv"}
            # The last place of the first head, from which on each head has its own one.
            k, v = (kept.view(-1)[self._ctx.s.C * config.head :] for kept in (keys, values))
            gamma = layer.input_layernorm.weight.detach()
            then(qkv, x=self._x, gamma=gamma, **weights, cos=cos, sin=sin, q=self._q, k=k, v=v)
            then(attention, q=self._q, keys=keys, values=values, y=self._attended)
            self._add(then, behind, self._attended, layer.self_attn["o_proj"].weight)
            gamma = layer.post_attention_layernorm.weight.detach()
            both = _joined(layer.mlp["gate_proj"], layer.mlp["up_proj"])
            then(gates, x=self._x, gamma=gamma, weight=both, residual=self._empty, y=self._between)
            self._add(then, down, self._between, layer.mlp["down_proj"].weight)
        head = self._linear("norm", config.hidden, config.vocabulary)
        gamma = model.model["norm"].weight.detach()
        then(head, x=self._x, gamma=gamma, weight=model.head.detach(), residual=self._empty, y=self._logits)
        return calls

    def _linear(self, form: str, inputs: int, outputs: int) -> Launch:
        sizes = {"M": self._ctx.s.B, "K": inputs, "N": outputs}
        return linear_few_rows.tuned(_of_op(self._ctx, linear_few_rows.OP, sizes, {"form": form}))  # type: ignore[no-any-return]

    def _add(self, then: Callable[..., None], launch: Launch, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Add a product to the residual."""
        then(launch, x=x, gamma=self._empty, weight=weight.detach(), residual=self._x, y=self._x)


def _each(calls: list[_Call]) -> None:
    for call in calls:
        call()


def _joined(*products: torch.nn.Linear) -> torch.Tensor:
    """The weights of several products in one tensor, which they have parts of from now on."""
    import torch

    both = torch.cat([one.weight.detach() for one in products])
    for one, part in zip(products, both.chunk(len(products)), strict=True):
        one.weight.data = part
    return both


def operators(ctx: Context) -> LlamaOperators:
    """What a Llama has of ours beside products by torch."""
    from harness.collection.nn._llama_operators import llama_operators

    found: LlamaOperators = replace(llama_operators(norm=True, gates=True), attention=_attention(ctx))
    return found


def _attention(ctx: Context) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """Attention of one new token, as LlamaOperators describes it."""
    import torch

    known: list[Launch] = []

    def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        sequences, heads, _, head = q.shape
        if not known:
            sizes = {"B": sequences, "H": heads, "G": keys.shape[1], "T": keys.shape[2], "D": head}
            known.append(decode_attention.tuned(_of_op(ctx, decode_attention.OP, sizes)))
        y = torch.empty((sequences, heads, head), dtype=q.dtype, device=q.device)
        known[0](Tensors(q=q.reshape(y.shape), keys=keys, values=values, y=y))
        return y.view(sequences, 1, heads * head)

    return attention
