"""What two ranks do in users' steps, by gloo on a CPU. One process that has both ranks' batches does the same."""

from __future__ import annotations

import io
import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed as dist

from harness.collection.steps import ladder
from harness.collection.steps.ladder import _compiled, _gradients, _learning, _ranks, _reference, _rungs, _steps
from harness.collection.steps.ladder._code_ranks import Ranks
from harness.collection.steps.ladder._declared import step_of
from harness.collection.steps.ladder._rungs import FLOAT32
from harness.collection.steps.ladder._trainer import StepSetup, StepTrainer, batch_of, tensors_of
from harness.collection.steps.training._curves import TrainingCurve
from harness.collection.steps.training._ranks import data_parallel
from harness.collection.steps.training._trainer import whole
from harness.devices.cpu import Cpu
from harness.errors import UsageError
from harness.model import Case
from harness.ranks import Group, PeerError, from_environment
from harness.session import Session
from tests.collection.steps.ladder.conftest import STEPS, answered, op_of
from tests.collection.steps.training.sharded import Watch

RANKS, MADE = 2, 3
GROUP: Group = from_environment()
CTX: Any = SimpleNamespace(group=GROUP)
GIVES = ("model", "batch", "loss", "optimizer")
RUNGS = {rung.name: rung for rung in _rungs.rungs(of_parts="foreach")}
WAYS = {"attention": ("float32", "fsdp", "accumulate", "patched_fsdp"), "unused": ("static_graph",)}
EXAMPLE = Path(__file__).parents[4] / "examples" / "ladder_step.py"
OTHERS = {"attention": ("static_graph", "fsdp_keep", "checkpoint"), "custom": ("float32",), "unused": ("float32",)}


def setup_of(step: str, **fields: Any) -> StepSetup:
    known = {"rank": GROUP.rank, "world": RANKS, "calm": True, "wide": True} | fields
    return StepSetup(str(STEPS / f"{step}.py"), 8, 5, torch.device("cpu"), "bfloat16", **known)


def trained(trainer: StepTrainer) -> list[torch.Tensor]:
    """The losses of some steps, as means over ranks, and the whole weights after them."""
    losses = torch.stack([trainer.loss_of_step() for _ in range(MADE)])
    if trainer.setup.world > 1:
        dist.all_reduce(losses)
        losses /= RANKS
    return [losses, *(whole(one.detach()) for one in trainer.weights)]


def alone(setup: StepSetup) -> list[torch.Tensor]:
    """The same by one process that has the batches of all ranks in one."""
    made = StepTrainer(FLOAT32, replace(setup, world=1, rank=0))
    parts = [[*tensors_of(batch_of(replace(setup, rank=rank)))] for rank in range(RANKS)]
    both = iter([torch.cat(one) for one in zip(*parts, strict=True)])
    made.batch = {name: next(both) for name in made.batch} if isinstance(made.batch, dict) else tuple(both)
    return trained(made)


def exact(ways: Mapping[str, Sequence[str]] = WAYS) -> None:
    """In float64, where sums in another order differ in their last digits alone."""
    for step, names in ways.items():
        setup = setup_of(step, unused=step == "unused")
        wanted = alone(setup)
        assert len({*wanted[0].tolist()}) == MADE
        for name in names:
            # In float32 but for the type, so that what is compared is the way alone.
            rung = replace(RUNGS[name], half="", tf32=False, optimizer="", channels_last=False)
            for got, want in zip(trained(StepTrainer(rung, setup)), wanted, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11, msg=f"{step}, {name}")


def exact_others() -> None:
    """The other ways, and a step of a file's own."""
    exact(OTHERS)


def compiled() -> None:
    """Each block is compiled inside of its group, and so is a Sequential; to compile C++ would take minutes."""
    real, graphs = torch.compile, []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def plain(function: Any, **_: Any) -> Any:
        return real(function, dynamic=False, backend=backend)

    setup = setup_of("attention")
    for name in ("compile", "fsdp_compile"):
        rung = replace(RUNGS[name], half="", tf32=False, optimizer="", channels_last=False)
        with patch.object(torch, "compile", plain):
            for got, want in zip(trained(StepTrainer(rung, setup)), alone(setup), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11, msg=name)
        assert graphs, name
        graphs.clear()
    # Around DistributedDataParallel torch.compile would leave out a Sequential, and say nothing.
    with patch.object(torch, "compile", plain):
        StepTrainer(RUNGS["compile"], replace(setup, source=str(EXAMPLE))).loss_of_step()
    assert graphs
    assert _compiled.is_compiled()
    torch.compiler.reset()


def communication() -> None:
    """Gradients of all parts of a batch are summed over ranks once. FSDP2 gathers a block's weights twice, or once.

    The model has two blocks, and FSDP2 gathers the rest of it once.
    """
    sums = {"allreduce_": 1}
    wanted = {
        "amp": sums,
        "accumulate": sums,
        "fsdp": {"_allgather_base_": 2 * 2 + 1, "_reduce_scatter_base_": 3},
        "fsdp_keep": {"_allgather_base_": 2 + 1, "_reduce_scatter_base_": 3},
    }
    for name, calls in wanted.items():
        trainer = StepTrainer(RUNGS[name], setup_of("attention", wide=False))
        for _ in range(2):  # DistributedDataParallel has other buckets in the second step than in the first one
            trainer.loss_of_step()
        with Watch() as seen:
            trainer.loss_of_step()
        assert seen.calls == calls, name


def rehearsed() -> None:
    """Steps before a capture leave no trace, and ranks that begin with different weights are refused."""
    tried = [("convolutions", "float32"), *(("attention", name) for name in ("fused_optimizer", "patched"))]
    for step, name in (*tried, ("attention", "fsdp_graph"), ("attention", "patched_fsdp_graph")):
        found = []
        for count in (0, 2):
            rung = replace(RUNGS[name], half="", tf32=False, graph=False)  # a CPU has none
            trainer = StepTrainer(rung, setup_of(step, calm=rung.patched))
            _ranks.rehearse(trainer, count)
            found.append(trained(trainer))
        for got, want in zip(*found, strict=True):
            assert torch.equal(got, want), (step, name)
    with pytest.raises(UsageError, match=r"model\(\) gives other weights on each rank"):
        StepTrainer(_reference.GATHERED, replace(setup_of("attention"), seed=GROUP.rank))


def ready(step: str, rung: str, dtype: str = "bfloat16") -> Session:
    """A session of a rung on this rank."""
    op = op_of(step, RANKS)
    case = Case(op.name, rung, dtype, (("B", answered(step)["size"]),), world=RANKS, device="cpu")
    return Session(case, op, Cpu(), GROUP)


def complaints(session: Session) -> list[str]:
    """What is wrong with a rung: with the first steps, or with a step on another batch."""
    session.prepare()
    found = session.check()
    call = session.rotation().calls[0]
    call()
    return [*([found] if found else []), *_steps.recheck(session._ctx, call.tensors, call)]


HONEST = (
    *(("attention", rung) for rung in ("float32", "amp", "fused_optimizer", "accumulate", "checkpoint", "patched")),
    *(("attention", rung) for rung in ("static_graph", "fsdp", "fsdp_keep", "patched_fsdp")),
    *(("convolutions", rung) for rung in ("channels_last", "patched", "fsdp", "patched_fsdp")),
    *(("custom", rung) for rung in ("amp", "patched", "fsdp")),
    *(("unused", rung) for rung in ("amp", "static_graph")),
)


def honest() -> None:
    """Rungs on two ranks are right."""
    for step, rung in HONEST:
        with ready(step, rung) as session:
            assert complaints(session) == [], (step, rung)
            assert session.warnings == []
    with ready("attention", "fused_optimizer", "float16") as session:
        assert complaints(session) == []


def unlike() -> None:
    """A rank that trains for itself is found, and so is a sum in the place of a mean."""
    real = data_parallel

    def summed(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        made.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future()
                                .then(lambda done: done.value()[0]))  # fmt: skip
        return made

    def first(change: Any) -> str:
        with patch.object(_ranks, "data_parallel", change), ready("attention", "float32") as session:
            return complaints(session)[0]

    assert first(summed).startswith("rank 0: weights: the gradient of the first step is off: ")
    assert "by 100.00%" in first(summed)
    assert first(lambda model, *_, **__: model).startswith("rank 0: weights: they differ between ranks after 10 steps")


def later() -> None:
    """Ranks that drift apart in the timed steps alone are found."""
    with ready("attention", "amp") as session:
        session.prepare()
        assert session.check() is None
        call = session.rotation().calls[0]
        call()
        with torch.no_grad():
            call.tensors.steps.trainer.weights[0].add_(1e-3 * GROUP.rank)
        found = [*_steps.recheck(session._ctx, call.tensors, call)]
    assert [text for text in found if text.startswith("weights: they differ between ranks after the timed steps")]


def again() -> None:
    """A step that is made again begins with weights that are alike on all ranks, and moved where ranks have parts."""
    calm = setup_of("attention", wide=False)
    wanted, _ = _gradients.kept(StepTrainer(_reference.GATHERED, calm))
    for name in ("static_graph", "fsdp"):
        twin = _gradients.Redrawn(StepTrainer(RUNGS[name], calm))
        shares = (0.0, 2.0**-7, 2.0**-7)
        off = [wanted.share(twin.compared(wanted, share, 9).distances, wanted.squares) for share in shares]
        assert 0 < off[0] < 0.1, name
        assert off[0] != off[1] == off[2] < 0.1, name
        assert twin.moved() == wanted.squares.keys(), name
        assert [*_ranks.apart(CTX, twin.trainer.model, name)] == []


def batches() -> None:
    """Ranks have batches of their own; where the file gives all of them the same one, a warning says so."""
    own = float(batch_of(setup_of("attention"))[0].sum())
    assert len({*GROUP.exchange(own)}) == RANKS
    with patch.object(_ranks, "APART_BY", 0), ready("attention", "float32") as session:
        _reference.forget()  # of the batches that ranks had until now
        assert complaints(session) == []
        assert [warning.code for warning in session.warnings] == ["same-batch"]
    _reference.forget()


def programs() -> None:
    """The code of rungs trains, and all ranks end with the same weights."""
    off = patch.multiple(dist, init_process_group=lambda _: None, destroy_process_group=lambda: None)
    for name in ("amp", "accumulate", "checkpoint", "patched", "static_graph", "fsdp_keep", "patched_fsdp"):
        known: dict[str, Any] = {}
        told = io.StringIO()
        with off, redirect_stdout(told):
            exec(ladder.code(RUNGS[name], "bfloat16", "attention.py", GIVES, 8, Ranks(RANKS)), known)
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", told.getvalue())]
        assert len(losses) == (0 if GROUP.rank else 10), name
        assert losses == [] or losses[-1] < losses[0], name
        assert [*_ranks.apart(CTX, known["model"], name)] == []
        assert ("wrapped" in known) is not RUNGS[name].is_sharded


def curves() -> None:
    """The losses of trainings from a seed are the means over ranks, which begin alike and learn from all batches."""
    known = step_of(op_of("attention", RANKS).variants["float32"])
    assert known
    place = (GROUP.rank, GROUP.size)

    def made(**options: Any) -> TrainingCurve:
        return _learning.trained(*known, "bfloat16", torch.device("cpu"), seed=1, steps=4, **options)

    alone, together, again = made(place=(0, 1)), made(place=place), made(place=place)
    assert together == again
    assert len({*GROUP.exchange(repr(together.losses))}) == 1
    setups = [setup_of("attention", rank=rank, calm=False, wide=False) for rank in range(RANKS)]
    batches = [_learning.batches(setup) for setup in setups]
    assert not torch.equal(batches[0][0][0], batches[1][0][0])
    firsts = GROUP.exchange(first_loss(replace(setups[GROUP.rank], seed=1, world=1), batches[GROUP.rank][0]))
    assert math.isclose(together.losses[0], sum(firsts) / RANKS, rel_tol=1e-5)
    assert abs(together.losses[-1] - alone.losses[-1]) > 1e-4


def sparse() -> None:
    """Gradients of an embedding stay sparse where the reference averages them, as in DistributedDataParallel."""
    weight = torch.nn.Parameter(torch.zeros(4, 2))
    torch.nn.functional.embedding(torch.tensor([GROUP.rank, 3]), weight, sparse=True).sum().backward()
    _ranks._average([weight])
    assert weight.grad.is_sparse
    assert weight.grad.to_dense().tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0]]


def first_loss(setup: StepSetup, batch: Sequence[torch.Tensor]) -> float:
    trainer = StepTrainer(FLOAT32, setup)
    for place, one in zip(tensors_of(trainer.batch), batch, strict=True):
        place.copy_(one)
    return float(trainer.loss_of_step())


def forgotten() -> None:
    """If a rank fails, all forget what they keep, so that none waits for another one that needn't compute it anew."""
    with ready("attention", "float32") as session:
        session.prepare()
    assert _reference.reference_losses.cache_info().currsize

    def fail() -> None:
        with _ranks.alike(CTX, _reference.forget):
            if GROUP.rank:
                raise GROUP.failed("out_of_memory", "no memory left")

    with pytest.raises(PeerError, match="rank 1: no memory left"):
        fail()
    assert not _reference.reference_losses.cache_info().currsize


CHECKS: tuple[Callable[[], None], ...] = (exact, communication, unlike, again, later, curves, sparse, forgotten)
RARE = (exact_others, compiled, rehearsed, honest, batches, programs)
"""Checks that `make slow-test` makes: tests of one process have them of the same rungs."""


def main(checks: tuple[Callable[[], None], ...]) -> None:
    """Make the checks, and print the name of each one that has passed."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
    sys.path.append(str(STEPS))
    for check in checks:
        check()
        print(check.__name__, flush=True)
        GROUP.barrier()


if __name__ == "__main__":
    main(RARE if sys.argv[1:] == ["rare"] else CHECKS)
