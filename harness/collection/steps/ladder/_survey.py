"""What has to be run of a user's step before it can be measured. It runs in a process that may die."""

from __future__ import annotations

import hashlib
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from harness import units
from harness.collection.steps.ladder._refused import advised, refuse_no_number
from harness.collection.steps.ladder._sheet import StepSheet
from harness.collection.steps.ladder._watched import attending, counting
from harness.errors import UsageError, brief

if TYPE_CHECKING:
    from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer

_LONG = 0.5
"""Seconds of a step from which on a ladder takes long."""
_OTHER_TYPES = {
    "float64": "autocast and TF32 leave float64 as it is, and a GPU computes it slowly",
    "bfloat16": "the rung float32 isn't in float32 then, and autocast has little to gain",
    "float16": "the rung float32 isn't in float32 then, and gradients may underflow",
}
_LONGEST = 60
"""Characters of a name that a source gives an op."""


def survey(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the StepSheet of a source, after one step of it.

    request: source, a path or a library's model; device, torch's name; size, of a library's batch; prefix, of the op's
    name; world, the most devices that it will be measured on. Raises UsageError for a source that isn't as it must be,
    and what the step raises.
    """
    import torch
    from torch.nn.parameter import is_lazy

    from harness.collection.nn._patch import patch, why_no_adamw
    from harness.collection.steps.ladder import _given
    from harness.collection.steps.ladder._optimizers import has_option
    from harness.collection.steps.ladder._rungs import FLOAT32
    from harness.collection.steps.ladder._trainer import (
        StepSetup,
        StepTrainer,
        blocks_of,
        has_batch_norm,
        tensors_of,
    )

    source = str(request["source"])
    if not _given.is_library(source):
        if not Path(source).is_file():
            raise UsageError(f"{source}: names no library that is known", "write timm:NAME or transformers:NAME")
        source = str(Path(source).resolve())
    given = _given.given(source, request["size"])
    setup = StepSetup(source, request["size"], 1, torch.device(request["device"]), "bfloat16")
    trainer = StepTrainer(FLOAT32, setup)
    _refuse_hidden(source, trainer.batch)
    if unsized := sum(is_lazy(one) for one in trainer.model.parameters()):
        raise UsageError(
            f"{source}: model() gives {unsized} parameters without a size, of lazy modules",
            "let model() call the module with a batch once before it gives it",
        )
    sizes = [one.shape[0] for one in tensors_of(trainer.batch) if one.ndim]
    if not sizes:
        raise UsageError(f"{source}: batch() gives no tensor with a first dimension", "give the items of a step in it")
    modules = [*trainer.model.modules()]
    repeats = bool(blocks_of(trainer.model))  # before our kernels are in them
    with advised():
        seen = _one_step(trainer)
    _refuse_rest(trainer)
    if request["world"] > 1 and "" not in seen.called:
        _refuse_parts(source, seen.called)
    patched = patch(trainer.model, trainer.optimizer)  # as `patched` does
    every = trainer.optimizers
    reasons = [why_no_adamw(one) for one in every]
    autocast, seconds = _under_autocast(setup, trainer)
    return asdict(
        StepSheet(
            name=f"{request['prefix']}{name_of(source)}",
            source=source,
            digest="" if _given.is_library(source) else hashlib.sha256(Path(source).read_bytes()).hexdigest(),
            size=sizes[0],
            gives=given.names,
            flops=seen.flops,
            optimizer=" and no ".join(dict.fromkeys(type(one).__name__ for one in every)),
            fused=any(has_option(one, "fused") for one in every),
            foreach=any(has_option(one, "foreach") for one in every),
            several=trainer.optimizer is not every[0],
            takes_model=given.takes_model,
            named=trainer.gives_dict and bool({"loss", "step"} & {*given.names}),
            adamw="" if "" in reasons else reasons[0],
            called=seen.called,
            by_host=seen.by_host,
            convolutions=sum(isinstance(one, torch.nn.Conv2d) for one in modules) > 1,
            batch_norm=has_batch_norm(trainer.model),
            linear=any(type(one) is torch.nn.Linear for one in modules),
            attention=seen.attends,
            blocks=repeats,
            patched=str(patched),
            world=request["world"],
            gradients=sum(one.numel() * one.element_size() for one in trainer.weights),
            unused=len(seen.missing),
            autocast=autocast,
            warnings=(*_of_weights(trainer, seen.used), *_of_step(setup, seen, autocast, seconds)),
        )
    )


def _under_autocast(setup: StepSetup, first: StepTrainer) -> tuple[str, float]:
    """Why a step fails under autocast, '' if it doesn't; and how many seconds the step takes, 0 if it fails.

    Raises UsageError if the model has weights of the first trainer's model.
    """
    from torch import OutOfMemoryError

    from harness.collection.steps.ladder._rungs import FLOAT32
    from harness.collection.steps.ladder._trainer import StepTrainer

    try:
        trainer = StepTrainer(replace(FLOAT32, half="own"), setup)
        _refuse_shared(first, trainer)
        float(trainer.loss_of_step())  # which also loads libraries, and chooses kernels
        begin = perf_counter()
        float(trainer.loss_of_step())
    except OutOfMemoryError:  # beside the first model
        return "", 0.0
    except UsageError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {brief(str(error))}", 0.0
    return "", perf_counter() - begin


def _of_weights(trainer: StepTrainer, used: Set[str]) -> Iterator[str]:
    """What a user should know of the weights. used: the names of those with a gradient in a step."""
    import torch

    from harness.collection.steps.ladder._optimizers import weights_of

    every = len(trainer.weights)
    named = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad]
    held = {id(one) for optimizer in trainer.optimizers for one in weights_of(optimizer)}
    if idle := [name for name, one in named if id(one) not in held]:
        yield (
            f"{len(idle)} of {every} weights aren't in the optimizer, such as {idle[0]}: requires_grad_(False) in "
            "model() saves the time of their gradients"
        )
    if unused := [name for name, _ in named if name not in used]:
        yield (
            f"{len(unused)} of {every} weights have no gradient in a step, such as {unused[0]}: if they are to learn, "
            "look for detach(), no_grad() and checkpoint(use_reentrant=True); else let model() freeze them by "
            "requires_grad_(False)"
        )
    for name, why in _OTHER_TYPES.items():
        if count := sum(one.dtype == getattr(torch, name) for one in trainer.weights):
            yield f"{count} of {every} weights are in {name}: {why}; let model() give them in float32 if you can"


def _of_step(setup: StepSetup, seen: _Seen, autocast: str, seconds: float) -> Iterator[str]:
    """What a user should know of the step. autocast: why it fails under autocast. seconds: of a step."""
    from harness.collection.steps.ladder._trainer import batch_of, tensors_of

    shapes = {tuple(one.shape for one in tensors_of(batch_of(replace(setup, seed=seed)))) for seed in (1, 2, 3)}
    if len(shapes) > 1:
        yield (
            "batch() gives tensors of different shapes in different calls, and times are of one of them: "
            "torch.compile compiles anew for each shape, and a CUDA graph is of one shape; pad the batches if you can"
        )
    sizes = [shape[0] for shape in min(shapes) if shape]
    if sizes.count(sizes[0]) * 2 < len(sizes):
        yield (
            f"most tensors of batch() don't begin with {sizes[0]}, the size of the first one, which counts as "
            "the items, so items a second may be of something else: let a tensor that begins with the items be first"
        )
    if seen.in_halves:
        yield (
            "the file enters autocast itself, so all rungs have that, float32 and tf32 too, and amp can add little: "
            "leave it out of the file, since the rungs enter it"
        )
    if autocast:
        yield f"the model fails under autocast, so all rungs go on without it: {autocast}"
    if seconds > _LONG:
        yield (
            f"a step takes {units.seconds(seconds, 2)}, and a rung makes some fifty, most of them before it is timed: "
            "name a few rungs by --variants, or take a smaller batch first"
        )


def _refuse_hidden(source: str, batch: Any) -> None:
    """Raise UsageError for a batch that is a loader, and for an object in it that may hold tensors nobody sees."""
    import torch
    from torch.utils import _pytree

    for one in _pytree.tree_leaves(batch):
        if isinstance(one, torch.Tensor):
            continue
        if isinstance(one, Iterator | torch.utils.data.DataLoader):
            raise UsageError(
                f"{source}: batch() gives a {type(one).__name__}, which isn't the items of one step",
                "give one batch of it, such as next(iter(loader)), where the loader is made outside of batch()",
            )
        if isinstance(one, Mapping) or is_dataclass(one) or hasattr(one, "to"):
            raise UsageError(
                f"{source}: batch() gives a {type(one).__name__}, in which the harness finds no tensors",
                "give a tensor, a tuple, a list or a dict of tensors, such as dict(batch) or vars(batch); loss gets "
                "the tensors of a dict by their names",
            )


def _refuse_shared(first: StepTrainer, second: StepTrainer) -> None:
    """Raise UsageError for weights that two calls of model() give: two trainings would change them."""
    taken = {id(one) for one in first.model.parameters()}
    if shared := [name for name, one in second.model.named_parameters() if id(one) in taken]:
        raise UsageError(
            f"{first.setup.source}: model() gives the same weights in each call, such as {shared[0]}",
            "make the model inside of model(), or give a copy.deepcopy() of it: each training begins with its own",
        )


def _refuse_rest(trainer: StepTrainer) -> None:
    """Raise UsageError for optimizers whose rates are all 0 after two steps."""
    if not any(group.get("lr", 1) for one in trainer.optimizers for group in one.param_groups):
        raise UsageError(
            f"{trainer.setup.source}: all rates of the optimizer are 0, so that no step changes a weight",
            "give the rate of the training; leave a scheduler that warms up from 0 out of optimizer()",
        )


def _refuse_parts(source: str, called: Sequence[str]) -> None:
    """Raise UsageError for a step that calls these parts of a model, and not the model, on several devices."""
    some = ", ".join(called[:3]) or "no part"
    raise UsageError(
        f"{source}: the step calls {some} of the model, and not the model",
        "let the model's forward call its parts, since several devices train what is called as one, or leave --world "
        "out",
    )


def name_of(source: str) -> str:
    """A name that an id can hold: the file's without its suffix, or the model's."""
    from harness.collection.steps.ladder._given import is_library

    is_model = is_library(source)
    last = Path(source.partition(":")[2]).name if is_model else Path(source).stem.removeprefix("ladder_")
    return re.sub(r"[^a-z0-9_]+", "_", last.lower()).strip("_")[-_LONGEST:] or "step"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of a step.

    flops: its operations. attends: whether it calls scaled_dot_product_attention. used, missing: the names of the
    weights that have a gradient in a step of their optimizer, and that have none in one; a step of the file's own may
    make several of these. called, by_host: as in StepSheet.
    """

    flops: int
    attends: bool
    used: set[str]
    missing: set[str]
    called: tuple[str, ...]
    by_host: str
    in_halves: bool


def _one_step(trainer: StepTrainer) -> _Seen:
    """Make a step, and look at it.

    Raises UsageError for a loss that is no number, and for a step of the file's own that leaves an optimizer out.
    """
    from harness.collection.steps.ladder._optimizers import weights_of

    named = [(name, one) for name, one in trainer.model.named_parameters() if one.requires_grad]
    used, missing, stepped = set[str](), set[str](), set[int]()

    def see(optimizer: Any, *_: object) -> None:
        stepped.add(id(optimizer))
        others = {id(one) for other in trainer.optimizers if other is not optimizer for one in weights_of(other)}
        for name, one in named:
            if id(one) not in others:
                (missing if one.grad is None else used).add(name)

    for optimizer in trainer.optimizers:
        optimizer.register_step_pre_hook(see)
    with attending() as calls, _calling(trainer) as called, counting() as counter:
        loss = trainer.loss_of_step()
    source = trainer.setup.source
    refuse_no_number(float(loss), source)
    if idle := [number for number, one in enumerate(trainer.optimizers, 1) if id(one) not in stepped]:
        which = f"optimizer {idle[0]} of {len(trainer.optimizers)}" if len(trainer.optimizers) > 1 else "the optimizer"
        raise UsageError(
            f"{source}: step() makes no step of {which} that it gets",
            "call its step(), so that gradients can be compared and rungs can change it; of several networks each may "
            "have an optimizer: let optimizer(model) give them in a tuple or a dict",
        )
    by_host = ", and ".join(_of_host(trainer))
    flops = int(counter.get_total_flops())
    return _Seen(flops, bool(calls), used, missing, tuple(called), by_host, any(called.values()))


def _of_host(trainer: StepTrainer) -> Iterator[str]:
    """What the host decides anew in the next step, which is made: numbers that a CUDA graph would keep."""
    from harness.collection.steps.ladder._optimizers import rates

    state = trainer.setup.given.state
    before, drawn, counted = rates(trainer.optimizers), _drawn(trainer), state.numbers()
    trainer.loss_of_step()
    changed = _changed(before, rates(trainer.optimizers))
    yield from (f"step() changes {name} of the optimizer" for name in changed)
    scheduled = [one for one in trainer.optimizers if hasattr(one.step, "_wrapped_by_lr_sched")]  # torch's mark
    by_numbers = any("lr" in group for group in rates(scheduled))
    if trainer.setup.given.step is not None and by_numbers and not changed:
        yield "the optimizer has a scheduler of the rate"
    yield from (f"random numbers of {name}" for name, drawing in _drawn(trainer).items() if drawing != drawn[name])
    yield from (f"the file's variable {name}" for name in _changed([counted], [state.numbers()]))


def _changed(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """The names of what a step has changed."""
    pairs = zip(before, after, strict=True)
    return sorted({name for old, new in pairs for name, value in old.items() if new.get(name) != value})


def _drawn(trainer: StepTrainer) -> dict[str, str]:
    """The states of random numbers that the host draws, by name. On a CPU torch's are the device's."""
    import torch

    found = {"Python's random": repr(random.getstate())}
    if numpy := sys.modules.get("numpy"):
        found["numpy"] = repr([getattr(one, "tolist", lambda one=one: one)() for one in numpy.random.get_state()])
    if trainer.setup.device.type != "cpu":
        found["torch on the CPU"] = repr(torch.get_rng_state().tolist())
    return found


@contextmanager
def _calling(trainer: StepTrainer) -> Iterator[dict[str, bool]]:
    """The names of the model's modules that are called meanwhile, but not by another one; whether under autocast."""
    import torch
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    names = {id(one): name for name, one in trainer.model.named_modules()}
    inside: list[int] = []
    called: dict[str, bool] = {}

    def enter(module: Any, _: Any) -> None:
        if id(module) in names:
            if not inside:
                called[names[id(module)]] = torch.is_autocast_enabled(trainer.setup.device.type)
            inside.append(id(module))

    def leave(module: Any, *_: Any) -> None:
        if id(module) in names:
            inside.pop()

    handles = register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()
