"""What the code of a rung has where torchrun starts several processes of it. This file needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.collection.steps.ladder._rungs import LadderRung

PROGRAM = "faster.py"
"""The name of the program, where a command needs one."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many ranks a program has. unused: whether some weights have no gradient in a step."""

    world: int = 1
    unused: bool = False

    @property
    def command(self) -> str:
        """What starts the program, a process for each GPU."""
        return f"torchrun --standalone --nproc-per-node={self.world} {PROGRAM}"


def imports(rung: LadderRung) -> Iterator[str]:
    """What only several ranks need of torch."""
    yield "from torch import distributed"
    if rung.is_sharded:
        yield "from torch.distributed.device_mesh import init_device_mesh"
        yield "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard"
    else:
        yield "from torch.nn.parallel import DistributedDataParallel"


def joined(ranks: Ranks | None) -> Iterator[str]:
    """The device; a process that is one of several joins the others, and has a GPU of its own."""
    if ranks is None:
        yield 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'
        return
    yield f"# Start it by: {ranks.command}"
    yield 'rank, device = int(os.environ["RANK"]), torch.device("cpu")'
    yield "if torch.cuda.is_available():"
    yield '    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))'
    yield "    torch.cuda.set_device(device)"
    yield 'distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")'
    yield "torch.manual_seed(0)  # all ranks begin with the same weights"


def wrapped(rung: LadderRung, ranks: Ranks, model: str) -> Iterator[str]:
    """The model in DistributedDataParallel. model: its name, or the name of what torch.compile made of it."""
    pad = ""
    if rung.graph:
        yield "side = torch.cuda.Stream()  # of the wrapper, of steps before the capture, of the capture"
        yield "side.wait_stream(torch.cuda.current_stream())"
        yield "with torch.cuda.stream(side):"
        pad = "    "
    yield f"{pad}wrapped = DistributedDataParallel("
    yield f"{pad}    {model},"
    yield f'{pad}    device_ids=[device.index] if device.type == "cuda" else None,'
    yield f"{pad}    broadcast_buffers=False,"
    yield f"{pad}    gradient_as_bucket_view=True,"
    if rung.way == "static_graph":
        yield f"{pad}    static_graph=True,"
    elif ranks.unused:
        yield f"{pad}    find_unused_parameters=True,"
    yield f"{pad})"


def sharded(rung: LadderRung, half: str) -> Iterator[str]:
    """The model in parts, if the rung has it so, by FSDP2. half: the type of autocast; '' without it."""
    if not rung.is_sharded:
        return
    yield "mesh = init_device_mesh(device.type, (distributed.get_world_size(),))"
    yield f"half = None if has_batch_norm(model) else torch.{half}" if half else "half = None"
    yield "blocks = list(dict.fromkeys(blocks_of(model)))"
    if rung.patched:
        yield "print(nn.patch(model))"
    yield "policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half and torch.float32)"
    yield "for block in blocks:"
    if rung.compiled:
        yield f"    block.forward = torch.compile(block.forward, dynamic=False, mode={rung.compiled!r})"
    yield f"    fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward={rung.way == 'fsdp'})"
    yield "fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)"
