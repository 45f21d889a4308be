"""The code of a rung: a program to copy, which does what the rung does to a user's step. This file needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from harness.collection.steps.ladder import _code_ranks
from harness.collection.steps.ladder._code_ranks import Ranks
from harness.collection.steps.ladder._given import RATE
from harness.collection.steps.ladder._rungs import CALLED, NAMED, OF_MODEL, OPTIMIZERS, LadderRung
from harness.collection.steps.training._ranks import REHEARSED
from harness.collection.steps.training._trainer import SCALE


@dataclass(frozen=True, slots=True)
class FileForm:
    """What a program must know of a user's file.

    gives: the functions that it defines. several: whether it gives several optimizers. takes_model: whether optimizer()
    gets the model. called: the parts of the model that the step calls; () if it calls the model. named: whether losses
    have names.
    """

    gives: tuple[str, ...]
    several: bool = False
    takes_model: bool = False
    named: bool = False
    called: tuple[str, ...] = ()

    @classmethod
    def of_tags(cls, tags: Collection[str]) -> Self:
        """The form that a scenario's tags tell of."""
        gives, called = (
            tuple(tag.removeprefix(first) for tag in tags if tag.startswith(first)) for first in ("gives:", CALLED)
        )
        return cls(gives, OPTIMIZERS in tags, OF_MODEL in tags, NAMED in tags, called)


def code(  # noqa: PLR0913, PLR0917 - what a program is made of
    rung: LadderRung,
    dtype: str,
    source: str,
    form: FileForm | Sequence[str],
    size: int,
    ranks: Ranks | None = None,
) -> str:
    """A program that makes ten steps as the rung does.

    dtype: the case's. source: the name of the file, as `step.py`, or a library's model. form: of the file; of a usual
    one the functions that it defines. size: of the batch of a library's model. ranks: where torchrun starts several
    processes.
    """
    several = ranks if ranks and ranks.world > 1 else None
    known = form if isinstance(form, FileForm) else FileForm(tuple(form))
    return "\n".join(_lines(rung, rung.dtype(dtype), source, known, size, several))


def _lines(  # noqa: PLR0913, PLR0917 - what a program is made of
    rung: LadderRung, half: str, source: str, form: FileForm, size: int, ranks: Ranks | None
) -> Iterator[str]:
    gives = form.gives
    yield from _imports(rung, source, form, size, ranks)
    yield from _code_ranks.joined(ranks)
    if rung.tf32:
        yield 'torch.set_float32_matmul_precision("high")'
        yield "torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True"
    yield ""
    yield "model = user.model().to(device).train()"
    if rung.channels_last:
        yield "model = model.to(memory_format=torch.channels_last)"
    if ranks:
        yield from _code_ranks.sharded(rung, half)
    yield from _optimizer(rung, form)
    yield from _scaler(half, form)
    is_wrapped = ranks is not None and not rung.is_sharded
    is_sharded = ranks is not None and rung.is_sharded
    if rung.patched:
        yield from _patched(rung, form, is_sharded=is_sharded)
    if rung.checkpoint:
        yield "for block in blocks_of(model):"
        yield "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    if rung.streams:
        yield "second_stream = on_two_streams(model, device)"
    called = "model"
    if rung.compiled and not is_sharded and form.called:
        yield f"for part in {form.called!r}:  # what the step calls of the model"
        yield f"    compile_in_place(model.get_submodule(part), dynamic=False, mode={rung.compiled!r})"
    elif rung.compiled and not is_sharded:
        yield f"compiled = torch.compile(model, dynamic=False, mode={rung.compiled!r})"
        called = "compiled"
    if ranks and is_wrapped:
        yield from _code_ranks.wrapped(rung, ranks, called)
        called = "wrapped"
    yield ""
    yield from _step(rung, half, form, called, is_wrapped=is_wrapped)
    yield ""
    yield from _loop(rung, ranks, by_name=form.named and "step" in gives)


def _scaler(half: str, form: FileForm) -> Iterator[str]:
    """The scaler of the loss, which a step of the file's own doesn't get."""
    if "step" not in form.gives:
        yield f"scaler = torch.amp.GradScaler(device.type, init_scale={SCALE}, enabled={half == 'float16'})"


def _patched(rung: LadderRung, form: FileForm, *, is_sharded: bool) -> Iterator[str]:
    """Our kernels in the model, and our optimizer and scaler. A model in parts has our kernels already."""
    ours = rung.optimizer == "ours"
    if is_sharded and not ours:
        return
    model = "torch.nn.Module()" if is_sharded else "model"
    scaler = ", scaler" if "step" not in form.gives else ""
    yield f"patched = nn.patch({model}{f', optimizer{scaler}' if ours else ''})"
    yield "print(patched)"
    if ours and scaler:
        yield "optimizer, scaler = patched.optimizer, patched.scaler"
    elif ours:
        yield "optimizer = patched.optimizer"


def _imports(rung: LadderRung, source: str, form: FileForm, size: int, ranks: Ranks | None) -> Iterator[str]:
    is_file = source.endswith(".py")
    is_sharded = ranks is not None and rung.is_sharded
    standard = {
        "from contextlib import nullcontext": ranks and rung.parts > 1,
        "from functools import partial": rung.checkpoint,
        "import os": ranks,
    }
    others = {
        "import torch": True,
        **dict.fromkeys(_code_ranks.imports(rung) if ranks else (), True),
        "from torch.utils import _pytree as tree": True,
        "from torch.utils.checkpoint import checkpoint": rung.checkpoint,
        "from harness.collection.steps.ladder._trainer import blocks_of": rung.checkpoint,
        "from harness.collection.steps.ladder._trainer import blocks_of, has_batch_norm": is_sharded,
        "from torch.nn.attention import SDPBackend, sdpa_kernel": rung.attention,
        "from harness import nn": rung.patched,
        "from harness.collection.steps.ladder._compiled import compile_in_place": (
            rung.compiled and not is_sharded and form.called
        ),
        "from harness.collection.nn._patch import why_no_adamw": rung.optimizer == "ours" and form.several,
        "from harness.collection.steps.training._streams import on_two_streams": rung.streams,
        "from harness.collection.steps.ladder._given import given": not is_file,
        f"import {source.removesuffix('.py')} as user": is_file,
    }
    yield from (line for line, needed in standard.items() if needed)
    if any(standard.values()):
        yield ""
    yield from (line for line, needed in others.items() if needed)
    if not is_file:
        yield ""
        yield f"user = given({source!r}, {size})"
    yield ""


def _optimizer(rung: LadderRung, form: FileForm) -> Iterator[str]:
    """The file's optimizers, with torch's calls that the rung asks for."""
    given = "model" if form.takes_model else "list(model.parameters())"
    is_given = "optimizer" in form.gives
    usual = f"torch.optim.AdamW(model.parameters(), lr={RATE})"
    yield f"optimizer = {f'user.optimizer({given})' if is_given else usual}"
    options = {}
    if rung.optimizer in ("fused", "foreach") or (rung.optimizer == "ours" and form.several):
        options = {"fused": rung.optimizer != "foreach", "foreach": rung.optimizer == "foreach"}
    if not (options or (rung.graph and rung.optimizer != "ours")):
        return
    options |= {"capturable": True} if rung.graph else {}
    if not form.several:
        yield f"options = {options}"
        if rung.graph:
            yield "options = {name: value for name, value in options.items() if name in optimizer.defaults}"
        yield "groups = [{**group, **options} for group in optimizer.param_groups]"
        yield 'optimizer = type(optimizer)(groups, lr=groups[0]["lr"], **options)'
        return
    yield ""
    yield ""
    yield "def with_options(one):"
    if rung.optimizer == "ours":
        yield "    if not why_no_adamw(one):  # nn.patch has its own"
        yield "        return one"
    yield f"    options = {{name: value for name, value in {options}.items() if name in one.defaults}}"
    yield "    groups = [{**group, **options} for group in one.param_groups]"
    yield '    return type(one)(groups, lr=groups[0]["lr"], **options) if options else one'
    yield ""
    yield ""
    yield "optimizer = tree.tree_map(with_options, optimizer)"


def _step(rung: LadderRung, half: str, form: FileForm, called: str, *, is_wrapped: bool) -> Iterator[str]:
    """The function that makes a step. is_wrapped: whether the model is in DistributedDataParallel."""
    # Weights in halves that autocast keeps would be those from before an update in the same step.
    kept = ", cache_enabled=False" if "step" in form.gives else ""
    modes = [f"torch.autocast(device.type, torch.{half}{kept})"] if half else []
    modes += [f"sdpa_kernel(SDPBackend.{rung.attention})"] if rung.attention else []
    within = f"with {', '.join(modes)}:" if modes else ""
    yield ""
    yield "def step(batch):"
    yield "    named = batch if isinstance(batch, dict) else {}"
    yield "    given = () if named else batch if isinstance(batch, (tuple, list)) else (batch,)"
    if "step" in form.gives:
        yield from _own_step(form, called, within)
        return
    yield f"    {'model' if form.several else 'optimizer'}.zero_grad(set_to_none=True)"
    if rung.parts > 1:
        yield "    losses = []"
        every = f"parts(given, named, {rung.parts})"
        if not is_wrapped:
            yield f"    for given, named in {every}:"
        else:
            yield f"    for number, (given, named) in enumerate({every}, 1):"
            yield "        # Gradients are averaged over ranks once, in the backward of the last part."
            yield f"        with wrapped.no_sync() if number < {rung.parts} else nullcontext():"
    pad = "    " * (1 + (rung.parts > 1) * (1 + is_wrapped))
    if within:
        yield f"{pad}{within}"
    share = f" / {rung.parts}" if rung.parts > 1 else ""
    yield from (f"{pad}    {line}" if within else f"{pad}{line}" for line in _loss(form, called, share))
    yield f"{pad}scaler.scale(loss).backward()"
    if rung.parts > 1:
        yield f"{pad}losses.append(loss.detach())"
    if rung.streams:
        yield "    second_stream.join()"
    if form.several:
        yield "    for one in tree.tree_leaves(optimizer):"
        yield "        scaler.step(one)"
    else:
        yield "    scaler.step(optimizer)"
    yield "    scaler.update()"
    yield "    return sum(losses)" if rung.parts > 1 else "    return loss.detach()"
    if rung.parts > 1:
        yield from _PARTS


_PARTS = (
    "",
    "",
    "def parts(given, named, count):",
    "    size = next(x for x in tree.tree_leaves((given, named)) if torch.is_tensor(x)).shape[0]",
    "    def part(x, n):",
    "        return x.chunk(count)[n] if torch.is_tensor(x) and x.ndim and x.shape[0] == size else x",
    "    return [tree.tree_map(lambda x: part(x, n), (given, named)) for n in range(count)]",
)
"""The function that cuts a batch."""


def _own_step(form: FileForm, called: str, within: str) -> Iterator[str]:
    """The step that the file makes itself. within: the line that enters autocast; '' without it."""
    if within:
        yield f"    {within}"
    pad = "        " if within else "    "
    made = f"user.step({called}, optimizer, *given, **named)"
    if not form.named:
        yield f"{pad}return {made}.detach()"
        return
    yield f"{pad}losses = {made}"
    yield "    return {name: one.detach() for name, one in losses.items() if torch.is_tensor(one)}"


def _loss(form: FileForm, called: str, share: str) -> Iterator[str]:
    """The loss of a batch, or of a part of it. share: what a part's is divided by."""
    if "loss" in form.gives or not form.gives:
        main = '["loss"]' if form.named else ""
        yield f"loss = user.loss({called}, *given, **named){main}{share}"
        return
    yield f"found = {called}(*given, **named)"
    yield f'loss = (found["loss"] if isinstance(found, dict) else found.loss){share}'


def _loop(rung: LadderRung, ranks: Ranks | None, *, by_name: bool) -> Iterator[str]:
    """The loop over batches, which copies each to where a graph expects it. by_name: whether a step gives a dict."""
    told = 'print(f"step {number}: loss {float(loss):.4f}")'
    if by_name:
        told = (
            'print(f"step {number}:", *(f"{name} {float(one):.4f}" for name, one in loss.items() if one.numel() == 1))'
        )
    if ranks:
        told = f"if rank == 0: {told}"
    yield ""
    yield "def placed(x):"
    last = "memory_format=torch.channels_last" if rung.channels_last else ""
    if last:
        yield "    if torch.is_tensor(x) and x.ndim == 4 and x.is_floating_point():"
        yield f"        return x.to(device, {last})"
    yield "    return x.to(device) if torch.is_tensor(x) else x"
    yield ""
    yield ""
    if ranks:
        yield "torch.manual_seed(1 + rank)  # each rank has batches and dropout of its own"
    yield "batch = tree.tree_map(placed, user.batch())  # your loader's first batch"
    if not rung.graph:
        yield "for number in range(10):"
        yield "    loss = step(batch)  # of your loader's next batch"
        yield f"    {told}"
    else:
        if not ranks:
            yield "side = torch.cuda.Stream()  # steps before a capture run on another stream"
        elif rung.is_sharded:
            yield "side = torch.cuda.Stream()  # of the capture, and of the steps before it"
        yield "side.wait_stream(torch.cuda.current_stream())"
        yield "with torch.cuda.stream(side):"
        yield f"    for _ in range({REHEARSED if ranks else 3}):"
        yield "        step(batch)"
        yield "torch.cuda.current_stream().wait_stream(side)"
        yield "graph = torch.cuda.CUDAGraph()"
        mode = ', stream=side, capture_error_mode="thread_local"' if ranks else ""
        yield f"with torch.cuda.graph(graph{mode}):"
        yield "    loss = step(batch)"
        yield "for number in range(10):"
        yield "    # copy your loader's next batch into the tensors of `batch` here, with copy_()"
        yield "    graph.replay()"
        yield f"    {told}"
    if ranks:
        if rung.graph:
            yield "torch.cuda.synchronize()"
            yield "graph.reset()  # which has the communicators"
        yield "distributed.destroy_process_group()"
