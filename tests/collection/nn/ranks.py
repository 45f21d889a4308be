"""What two ranks do with harness.nn: DDP, FSDP2 and DTensor by gloo. Each check compares with one process and torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from harness import nn

RANKS, STEPS, WIDTH = 2, 4, 6
OVERFLOW = 2  # the step in which rank 0 has an infinite gradient


def model(ours: bool) -> torch.nn.Sequential:
    """Every module, the same parameters in each process. Dropout drops nothing: both sides draw other masks."""
    kind: Any = nn if ours else torch.nn
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        kind.LayerNorm(WIDTH),
        kind.Dropout(p=0.0),
        torch.nn.Linear(WIDTH, WIDTH),
        kind.RMSNorm(WIDTH),
        kind.Softmax(dim=-1),
    )


def batch(step: int) -> Tensor:
    """The batch of all ranks."""
    return torch.randn(2 * RANKS, WIDTH, generator=torch.Generator().manual_seed(step))


def trained(own: torch.nn.Module, optimizer: Any, scaler: Any, rank: int | None) -> torch.nn.Module:
    """The model after some steps with this rank's part of the batches, or with the whole ones."""
    for step in range(STEPS):
        x = batch(step) if rank is None else batch(step)[2 * rank : 2 * rank + 2]
        optimizer.zero_grad()
        y = own(x)
        loss = (y * torch.arange(WIDTH)).square().mean()
        scaler.scale(loss * float("inf") if step == OVERFLOW and not rank else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return own


def expected() -> list[Tensor]:
    """The parameters by torch, in one process."""
    own = model(ours=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    return [one.detach() for one in trained(own, torch.optim.AdamW(own.parameters()), scaler, None).parameters()]


def assert_same(made: list[Tensor]) -> None:
    for one, other in zip(made, expected(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def ddp(mesh: DeviceMesh) -> None:
    """DistributedDataParallel, our optimizer and our scaler."""
    own = DistributedDataParallel(model(ours=True))
    optimizer = nn.AdamW(own.parameters())
    trained(own, optimizer, nn.GradScaler("cpu", init_scale=16.0), mesh.get_rank())
    assert_same([one.detach() for one in own.parameters()])


def fsdp(mesh: DeviceMesh) -> None:
    """FSDP2: parameters, moments and gradients are distributed. The state of the optimizer can be loaded by torch's."""
    for scaler_kind in (nn.GradScaler, torch.amp.GradScaler):
        own = model(ours=True)
        for layer in own:
            fully_shard(layer, mesh=mesh)
        fully_shard(own, mesh=mesh)
        optimizer = nn.AdamW(own.parameters())
        trained(own, optimizer, scaler_kind("cpu", init_scale=16.0), mesh.get_rank())
        assert_same([one.full_tensor().detach() for one in own.parameters()])
        theirs = torch.optim.AdamW(own.parameters())
        theirs.load_state_dict(optimizer.state_dict())
        for one, other in zip(optimizer.state.values(), theirs.state.values(), strict=True):
            assert torch.equal(one["exp_avg"].full_tensor(), other["exp_avg"].full_tensor())


def tensors(mesh: DeviceMesh) -> None:
    """Functions of DTensors whose batch or whose last dimension lies on several ranks."""
    torch.manual_seed(1)
    x, weight = torch.randn(4, WIDTH), torch.randn(WIDTH)
    for place in (Shard(0), Shard(1), Replicate()):
        given = distribute_tensor(x, mesh, [place]).requires_grad_()
        vector = distribute_tensor(weight, mesh, [Replicate()]).requires_grad_()
        y = nn.softmax(nn.rms_norm(nn.layer_norm(given, vector, vector), vector))
        y.square().sum().backward()
        own = [one.clone().requires_grad_() for one in (x, weight)]
        wanted = nn.softmax(nn.rms_norm(nn.layer_norm(own[0], own[1], own[1]), own[1]))
        wanted.square().sum().backward()
        for one, other in ((y, wanted), (given.grad, own[0].grad), (vector.grad, own[1].grad)):
            torch.testing.assert_close(one.full_tensor(), other)


def refused(mesh: DeviceMesh) -> None:
    """Distributed gradients of unscale_."""
    grad = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(ValueError, match="use GradScaler"):
        nn.unscale_([grad], torch.ones(()), torch.zeros(()))


CHECKS: tuple[Callable[[DeviceMesh], None], ...] = (ddp, fsdp, tensors, refused)


def main(rank: int, store: str) -> None:
    """Make all checks, and print the name of each one that has passed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for check in CHECKS:
        check(mesh)
        print(check.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
