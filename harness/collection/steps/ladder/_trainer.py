"""A user's model with its batch and its optimizer, and one step of it, as a rung asks for it."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from harness.collection.steps.ladder import _optimizers, _ranks
from harness.collection.steps.ladder._compiled import begin_compiling, compile_in_place
from harness.collection.steps.ladder._given import Given, arguments, given, is_library
from harness.collection.steps.ladder._refused import losses_of, module_of, refuse_ended
from harness.collection.steps.ladder._rungs import LadderRung
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.training._settings import captured
from harness.collection.steps.training._trainer import NEVER, SCALE

if TYPE_CHECKING:
    import torch

NOTHING = 2.0**-40
"""The share that a twin drops: above 0, so that kernels of dropout run, and too small for any number to be dropped."""
_SHARES = ("p", "dropout", "drop_path", "drop_prob", "dropout_p", "dropout_prob", "attn_drop", "attention_dropout")
"""Attributes of modules that say which share is dropped."""


@dataclass(frozen=True, slots=True)
class StepSetup:
    """What a user's training begins with: the same for all rungs of a case.

    half: the case's dtype. chance: what is added to the seed once the model is made, so that dropout draws others.
    calm: whether dropout drops nothing. wide: whether all is in float64.

    rank, world: this rank, and how many there are: each has a batch and random numbers of its own. unused: whether some
    weights have no gradient in a step. called: the names of the modules that the step calls; '' is the model.
    """

    source: str
    size: int
    seed: int
    device: torch.device
    half: str
    chance: int = 0
    calm: bool = False
    wide: bool = False
    rank: int = 0
    world: int = 1
    unused: bool = False
    called: tuple[str, ...] = ("",)

    @property
    def given(self) -> Given:
        """What the source gives."""
        return given(self.source, self.size)

    @property
    def drawn(self) -> int:
        """The seed of dropout."""
        return self.seed + 1 + self.chance + self.rank * _ranks.APART_BY


def of_rank(setup: StepSetup, sheet: StepSheet, rank: int, world: int) -> StepSetup:
    """The setup of one of so many ranks."""
    return replace(setup, rank=rank, world=world, unused=world > 1 and sheet.unused > 0, called=sheet.called)


class StepTrainer:
    """Makes steps as a rung says. `loss_of_step` makes one, and gives its loss.

    named: losses of the last step that have names. gives_dict: whether the file gives losses in a dict. The file's
    global variables are the trainer's own, whatever other trainings leave in them.
    """

    def __init__(self, rung: LadderRung, setup: StepSetup) -> None:
        """Make batch, model and optimizers. Torch's seed is set."""
        import torch

        self.rung, self.setup = rung, setup
        self.named: Mapping[str, torch.Tensor] = {}
        self.gives_dict = False
        self.batch = batch_of(setup)
        self._variables = setup.given.state.fresh()
        setup.given.state.enter(self._variables)
        self.model = model_of(setup)
        if rung.channels_last:
            self.model.to(memory_format=torch.channels_last)
            self.batch = _mapped(self.batch, _channels_last)
        half = rung.dtype(setup.half)
        self.half = getattr(torch, half) if half else None
        several = setup.world > 1
        self.is_sharded = several and rung.is_sharded
        if self.is_sharded:
            self._shard()
        self.weights = [one for one in self.model.parameters() if one.requires_grad]
        plain = _optimizers.made(setup.given, self.model, setup.source)
        self.optimizer = _optimizers.mapped(plain, partial(_optimizers.as_asked, rung=rung))
        if several and rung.way == "gathered":
            _ranks.average_after_backward(self.weights)
        scaled = half == "float16" and setup.given.step is None
        self.scaler: Any = torch.amp.GradScaler(
            setup.device.type, init_scale=SCALE, growth_interval=NEVER, enabled=scaled
        )
        if rung.patched:
            self._patch()
        if rung.checkpoint:
            from torch.utils.checkpoint import checkpoint

            for block in blocks_of(self.model):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        self.second_stream: Any = None
        if rung.streams:
            from harness.collection.steps.training._streams import on_two_streams

            self.second_stream = on_two_streams(self.model, setup.device)
        self.called = self.model
        if rung.compiled and not self.is_sharded:
            # Before DistributedDataParallel wraps the model: around the wrapper, torch.compile would leave out a model
            # whose class is torch's own, such as Sequential. Torch cuts the graph by buckets in both orders.
            self._compile()
        if several:
            self.called = _ranks.wrapped(self.called, rung, setup.device, unused=setup.unused)
        self._wrapped = self.called
        self.begin_drawing()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """All optimizers of the step."""
        return _optimizers.every(self.optimizer)

    def begin_drawing(self) -> None:
        """Begin with the random numbers of dropout, whatever numbers were drawn before."""
        seeded(self.setup.drawn)

    def loss_of_step(self) -> torch.Tensor:
        """Forward, backward and the optimizers' steps."""
        self.setup.given.state.enter(self._variables)
        if self.setup.given.step is not None:
            return self._own_step()
        loss = self._backward()
        for one in self.optimizers:
            self.scaler.step(one)
        self.scaler.update()
        return loss

    def as_graph(self) -> Callable[[], torch.Tensor]:
        """The step as a CUDA graph; steps must have been made before."""
        return captured(self.loss_of_step, ranks=self.setup.world)

    def loss_of_batch(self) -> torch.Tensor:
        """The loss of the batch; of a file with a step of its own after such a step."""
        import torch

        given = self.setup.given
        if given.step is not None:
            return self.loss_of_step()
        given.state.enter(self._variables)
        positional, named = arguments(self.batch)
        try:
            with torch.no_grad():  # which takes less memory
                found = given.loss(self.called, *positional, **named)
        except RuntimeError:  # of a loss that has gradients in it, such as with respect to the input
            found = given.loss(self.called, *positional, **named)
        return losses_of(found, given).main.detach()

    def _own_step(self) -> torch.Tensor:
        """The file's own step."""
        positional, named = arguments(self.batch)
        with self._modes():
            assert self.setup.given.step is not None
            try:
                found = self.setup.given.step(self.called, self.optimizer, *positional, **named)
            except ValueError as error:
                refuse_ended(error)
                raise
        losses = losses_of(found, self.setup.given)
        self.gives_dict = losses.is_dict
        self.named = {name: one.detach() for name, one in losses.named.items()}
        return losses.main.detach()

    def _backward(self) -> torch.Tensor:
        """New gradients of the scaled loss. Gives the loss."""
        for weight in self.weights:
            weight.grad = None
        parts: list[dict[str, torch.Tensor]] = []
        for number, part in enumerate(_parts(self.batch, self.rung.parts), 1):
            positional, named = arguments(part)
            with _ranks.adding_up(self._wrapped, last=number == self.rung.parts):
                with self._modes():
                    found = losses_of(self.setup.given.loss(self.called, *positional, **named), self.setup.given)
                    loss = found.main / self.rung.parts
                self.scaler.scale(loss).backward()
            self.gives_dict = found.is_dict
            parts.append({"": loss.detach(), **{n: one.detach() / self.rung.parts for n, one in found.named.items()}})
        if self.second_stream:
            self.second_stream.join()
        sums = {name: sum((part[name] for part in parts[1:]), one) for name, one in parts[0].items()}
        main = sums.pop("")
        self.named = sums
        return main

    def _modes(self) -> ExitStack:
        """Autocast, and the backend of attention."""
        import torch

        modes = ExitStack()
        if self.half is not None:
            # Weights in halves that autocast keeps would be those from before an update in the same step.
            keeps = self.setup.given.step is None
            modes.enter_context(torch.autocast(self.setup.device.type, self.half, cache_enabled=keeps))
        if self.rung.attention:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            modes.enter_context(sdpa_kernel(getattr(SDPBackend, self.rung.attention)))
        return modes

    def _compile(self) -> None:
        """Let torch.compile compile the model, or the parts of it that the step calls."""
        import torch

        begin_compiling()
        options: dict[str, Any] = {"dynamic": False, "mode": self.rung.compiled}
        if "" in self.setup.called:
            self.called = torch.compile(self.called, **options)
            return
        for name in self.setup.called:
            compile_in_place(self.model.get_submodule(name), **options)

    def _shard(self) -> None:
        """Put our kernels into the model, and compile its blocks, where the rung has it so; then cut weights."""
        import torch

        from harness.collection.nn._patch import patch

        blocks = [*dict.fromkeys(blocks_of(self.model))]  # before our kernels are in them
        # Batch norm wants its weights and its statistics in one type.
        gathered = None if has_batch_norm(self.model) else self.half
        if self.rung.patched:
            patch(self.model)  # before FSDP2, which gives modules classes of its own
        if self.rung.compiled:
            begin_compiling()
            for block in blocks:
                block.forward = torch.compile(block.forward, dynamic=False, mode=self.rung.compiled)
        _ranks.shard(self.model, self.rung, blocks, gathered)

    def _patch(self) -> None:
        """Put our kernels into the model, and our optimizer and scaler in place where the rung has them."""
        import torch

        from harness.collection.nn._dropout import dropout, manual_seed
        from harness.collection.nn._patch import patch

        # Now there is a number of the next call: code that is compiled without one is compiled again with it.
        dropout(torch.zeros(1, device=self.setup.device), 0.5)
        manual_seed(self.setup.drawn)
        model = torch.nn.Module() if self.is_sharded else self.model  # which has them already if it is in parts
        if self.rung.optimizer == "ours":
            done = patch(model, self.optimizer, self.scaler)  # of several optimizers each that ours can stand for
            self.optimizer, self.scaler = done.optimizer, done.scaler
        else:
            patch(model)


def model_of(setup: StepSetup) -> torch.nn.Module:
    """The model on the device, in training, with weights that depend on the seed only."""
    if is_library(setup.source):
        made = copy.deepcopy(_library_model(setup.source, setup.size, setup.seed))
    else:
        seeded(setup.seed)
        made = module_of(setup.given.model(), setup.source)
    model = made.to(setup.device).train()
    if setup.wide:
        model = model.double()
    return calmed(model) if setup.calm else model


@lru_cache(maxsize=1)
def _library_model(source: str, size: int, seed: int) -> torch.nn.Module:
    """A library's model after this seed, in the host's memory: to draw its weights takes much longer than to copy them.

    A file's model is made anew each time, since the file's variables may have parts of it.
    """
    seeded(seed)
    return module_of(given(source, size).model(), source)


def batch_of(setup: StepSetup) -> Any:
    """The batch on the device, which depends on the seed and the rank only."""
    import torch

    wide = torch.float64 if setup.wide else None

    def placed(one: torch.Tensor) -> torch.Tensor:
        dtype = wide if wide and one.is_floating_point() else one.dtype
        return one.detach().to(setup.device, dtype, copy=True).requires_grad_(one.requires_grad)  # a leaf

    return _mapped(_kept_batch(setup.source, setup.size, setup.seed + setup.rank * _ranks.APART_BY), placed)


def next_batch(source: str, size: int, seed: int) -> Any:
    """What batch() gives after this seed, with the global variables that its last call left."""
    one = given(source, size)
    one.state.enter(one.state.shared)
    seeded(seed)
    return one.batch()


@lru_cache(maxsize=2)
def _kept_batch(source: str, size: int, seed: int) -> Any:
    """What batch() gives after this seed, in the host's memory.

    It is called once, since a loader goes on with each call: a rung and its reference must have the same batch.
    """
    made = next_batch(source, size, seed)
    return _mapped(made, lambda one: one.detach().cpu().requires_grad_(one.requires_grad))


def seeded(seed: int) -> None:
    """Set the seeds of torch, of Python's random, and of numpy's random where it is loaded."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


def calmed(model: torch.nn.Module) -> torch.nn.Module:
    """The model with dropout and stochastic depth that drop nothing, as far as modules have their share."""
    for module in model.modules():
        for name in _SHARES:
            share = vars(module).get(name)
            if isinstance(share, float) and 0 < share < 1:
                setattr(module, name, NOTHING)
    return model


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules that follow each other in a list or a sequence, several of one class, and no such modules in them."""
    import torch

    found: list[torch.nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        children = [child for child in module if any(True for _ in child.children())]
        if len(children) > 1 and len({type(child) for child in children}) == 1:
            found += children
            inside.update(id(one) for child in children for one in child.modules())
    return found


def has_batch_norm(model: torch.nn.Module) -> bool:
    """Whether a model has batch norm, by a module."""
    import torch

    return any(isinstance(one, torch.nn.modules.batchnorm._BatchNorm) for one in model.modules())


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch."""
    import torch
    from torch.utils import _pytree

    yield from (one for one in _pytree.tree_leaves(batch) if isinstance(one, torch.Tensor))


def _mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with each tensor changed."""
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map(lambda one: change(one) if isinstance(one, torch.Tensor) else one, batch)


def _channels_last(one: torch.Tensor) -> torch.Tensor:
    import torch

    return one.to(memory_format=torch.channels_last) if one.ndim == 4 and one.is_floating_point() else one


def _parts(batch: Any, count: int) -> list[Any]:
    """Parts of a batch, one after the other along the first dimension."""
    if count == 1:
        return [batch]
    whole = next(tensors_of(batch)).shape[0]

    def part(number: int, one: torch.Tensor) -> torch.Tensor:
        return one.chunk(count)[number] if one.ndim and one.shape[0] == whole else one

    return [_mapped(batch, partial(part, number)) for number in range(count)]
