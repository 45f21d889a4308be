"""What two ranks do in a Llama's steps, by gloo on a CPU. One process that has both ranks' batches does the same."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from harness.collection.models import MODELS, llama
from harness.collection.steps.training import _scaling, _sharded
from harness.collection.steps.training._llama import LLAMA
from harness.collection.steps.training._ranks import RankTrainer, with_few_labels
from harness.collection.steps.training._rungs import FLOAT32, Rung
from harness.collection.steps.training._trainer import Setup, Trainer, batch_of, whole

RANKS, STEPS, SIZE = 2, 2, 4
RUNGS = {rung.name: rung for rung in LLAMA}
EXACT = Setup("llama_toy", SIZE, 3, torch.device("cpu"), torch.float64)
LAYERS = MODELS["llama_toy"].layers
SHARDED = ("fsdp", "fsdp_keep")

Found = tuple[list[float], list[torch.Tensor]]


def trainer(way: str, rung: Rung, setup: Setup) -> RankTrainer:
    """This rank's trainer."""
    return _scaling.trainer_of(_scaling.way_of(way), rung, replace(setup, shard=dist.get_rank()), RANKS)


def trained(own: Trainer) -> Found:
    """The losses of some steps, as means over ranks, and the whole weights after them."""
    losses = torch.stack([own.loss_of_step() for _ in range(STEPS)])
    if isinstance(own, RankTrainer):
        dist.all_reduce(losses, dist.ReduceOp.SUM)
        losses /= RANKS
    return losses.tolist(), [whole(one.detach()) for one in own.masters]


@cache
def alone(rung: Rung, setup: Setup) -> Found:
    """The same by one process that has the batches of all ranks in one."""
    made = Trainer(rung, replace(setup, size=RANKS * setup.size, micro_batches=1))
    parts = [with_few_labels(batch_of(replace(setup, shard=rank), made.kind), setup.config) for rank in range(RANKS)]
    made.batch = type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))
    return trained(made)


def assert_same(found: Found, wanted: Found, **allowed: float) -> None:
    assert len(set(wanted[0])) == STEPS
    for one, other in zip((torch.tensor(found[0]), *found[1]), (torch.tensor(wanted[0]), *wanted[1]), strict=True):
        torch.testing.assert_close(one, other, **(allowed or {"rtol": 1e-9, "atol": 1e-11}))


def exact() -> None:
    """In float64, where sums in another order differ in their last digits alone."""
    for way, micro_batches in (("ddp", SIZE), ("fsdp", 1), ("fsdp_keep", SIZE)):
        setup = replace(EXACT, micro_batches=micro_batches, clip=0.5)
        assert_same(trained(trainer(way, FLOAT32, setup)), alone(FLOAT32, replace(EXACT, clip=0.5)))


def exact_others() -> None:
    """The same, with the other number of micro-batches each."""
    for way, micro_batches in (("ddp", 1), ("fsdp", SIZE), ("fsdp_keep", 1)):
        setup = replace(EXACT, micro_batches=micro_batches, clip=0.5)
        assert_same(trained(trainer(way, FLOAT32, setup)), alone(FLOAT32, replace(EXACT, clip=0.5)))


def rungs() -> None:
    """Blocks that are computed again, logits in parts, and our operators and AdamW, whose weights are DTensors."""
    for name in ("recompute", "chunked", "fused_loss"):
        found = trained(trainer("fsdp", replace(RUNGS[name], half="none"), replace(EXACT, micro_batches=2)))
        assert_same(found, alone(FLOAT32, EXACT))


def halves() -> None:
    """Layers compute in bfloat16, weights are updated in float32: as one process does with masters beside its halves.

    Losses may be off by a unit in the last place of bfloat16, a twelfth of what a step takes off them. The sign of a
    gradient decides about Adam's first updates, so a weight may be off by twice the rate in each step.
    """
    setup = replace(EXACT, dtype=torch.bfloat16)
    off = 2 * STEPS * setup.config.rate
    for micro_batches, rung in ((1, RUNGS["chunked"]), (2, replace(RUNGS["fused_loss"], half="mixed"))):
        own = trainer("fsdp", rung, replace(setup, micro_batches=micro_batches))
        assert {one.dtype for one in own.weights} == {torch.float32}
        assert own.error_of_mean() < 0.03, "a few units in the last place of bfloat16"
        losses, weights = trained(own)
        wanted = alone(RUNGS["chunked_half"], setup)
        assert_same((losses, []), (wanted[0], []), rtol=torch.finfo(torch.bfloat16).eps, atol=0)
        assert_same((losses, weights), (losses, wanted[1]), rtol=0, atol=off)


def types() -> None:
    """Layers have weights and input in bfloat16, and the angles of places in float32."""
    seen: set[tuple[torch.dtype, ...]] = set()
    own = trainer("fsdp", RUNGS["chunked"], replace(EXACT, dtype=torch.bfloat16))

    def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        seen.add((q.dtype, k.dtype, cos.dtype, sin.dtype))
        return llama.rope(q, k, cos, sin)

    for layer in own.model.model["layers"]:
        layer.operators = replace(layer.operators, rope=rope)
    own.loss_of_step()
    assert seen == {(torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)}


def parts() -> None:
    """Each rank has a half of the weights, gradients and moments, rounded up to whole rows."""
    own = trainer("fsdp", FLOAT32, EXACT)
    own.loss_of_step()
    for one in own.weights:
        local, rows = one.to_local(), -(-one.shape[0] // RANKS)
        assert local.shape[0] in (rows, one.shape[0] - rows)
        moment = own.optimizer.state[one]["exp_avg"]
        assert one.grad is not None
        assert one.grad.to_local().shape == moment.to_local().shape == local.shape


class Watch(TorchDispatchMode):  # type: ignore[misc] # torch has no types
    """How often each operator was called meanwhile that communicates."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self.calls[function._opname] += 1
        return function(*args, **(kwargs or {}))


def communication() -> None:
    """Layers are gathered for forward and backward, or once; gradients are summed once for all micro-batches."""
    for count in (1, 2):
        own = trainer("ddp", FLOAT32, replace(EXACT, micro_batches=count))
        own.loss_of_step()
        with Watch() as seen:
            own.loss_of_step()
        assert seen.calls["allreduce_"] == 1, count
    for (way, gathers), count in product({"fsdp": 2, "fsdp_keep": 1}.items(), (1, 2)):
        own = trainer(way, FLOAT32, replace(EXACT, micro_batches=count))
        own.loss_of_step()
        with Watch() as seen:
            own.loss_of_step()
        # The root's weights are gathered once for forward and backward.
        layers = LAYERS * gathers + 1
        gathered = layers if way == "fsdp_keep" else layers * count
        assert seen.calls == {"_allgather_base_": gathered, "_reduce_scatter_base_": LAYERS + 1}, (way, count)


def layers_compiled() -> None:
    """Each layer is compiled, and all of them share the code: one of the first layer, which has no residual."""
    graphs: list[object] = []

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        forward: Callable[..., Any] = graph.forward
        return forward

    def compiled(function: Callable[..., Any], _mode: str) -> Any:
        """To compile C++ would take minutes."""
        return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)

    with patch.object(_sharded, "compiled", compiled):
        rung = replace(RUNGS["compile_chunked"], half="none", tf32=False)
        assert_same(trained(trainer("fsdp", rung, EXACT)), alone(FLOAT32, EXACT))
    assert len(graphs) == 2 <= LAYERS


def rehearsed() -> None:
    """A rehearsal for a graph leaves no trace in parts of weights either."""
    own = trainer("fsdp", FLOAT32, EXACT)
    own.rehearse()
    assert_same(trained(own), alone(FLOAT32, EXACT))


def wrong() -> None:
    """A sum over ranks in the place of their mean is found."""
    own = trainer("fsdp", FLOAT32, EXACT)
    assert own.error_of_mean() < 1e-12
    own.model.set_gradient_divide_factor(1.0)
    for layer in own.model.model["layers"]:
        layer.set_gradient_divide_factor(1.0)
    assert own.error_of_mean() > _scaling.MEAN_OFF


CHECKS: tuple[Callable[[], None], ...] = (exact, parts, communication, wrong)
RARE = (exact_others, rungs, halves, types, layers_compiled, rehearsed)
"""Checks that `make slow-test` makes: their rungs compute on one rank as on two, which `exact` has of the plain one."""


def main(rank: int, store: str, checks: tuple[Callable[[], None], ...]) -> None:
    """Make the checks, and print the name of each one that has passed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    for check in checks:
        check()
        print(check.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], RARE if sys.argv[3:] == ["rare"] else CHECKS)
