"""What collectives share: inputs that each rank can make for all, the check, their bytes, and their two variants.

N is the number of elements that nccl-tests calls the size: of the larger buffer of a rank. The algorithm bandwidth is
the bytes of that buffer over the time. Bus bandwidth is the bytes that each device has to send, over the time; the
bytes sent are the bytes of that buffer times the factor that nccl-tests gives (doc/PERFORMANCE.md there):

    all-reduce                            2 (n - 1) / n
    all-gather, reduce-scatter, all-to-all  (n - 1) / n
    broadcast, send and receive             1

A switch that adds up what passes through it (NVLink SHARP) lets a device send fewer bytes in an all-reduce. Then the
bus bandwidth may exceed the bandwidth of the link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import metrics, units
from harness.collection.ops.process_groups import process_group, unsupported_alone
from harness.metrics import ALWAYS, Metric, Subject
from harness.model import Case, Work
from harness.ops import FLOATS, Context, Expected, Extremes, Launch, Op, Symbols, Tensor, Tensors

if TYPE_CHECKING:
    import torch

Call = Callable[[Context, Tensors, Any], object]
"""Does the collective on a rank's tensors in a process group."""
Sent = Callable[[int, int], int]
"""Bytes that a device sends, from the size in bytes and the number of ranks."""
LARGEST = 8
"""Inputs are whole numbers from -8 to 8: sums over ranks are exact, in halves too, up to 32 ranks in bfloat16."""
WHOLE, PART = ("N",), ("N // world",)
COLLECTIVE = "collective_bytes"
"""The fact that a collective has: its bytes, as nccl-tests counts them."""


def _bus_bandwidth(s: Subject) -> float | None:
    return s.work.sent / s.time if COLLECTIVE in s.facts and s.work and s.work.sent and s.time else None


def _algorithm_bandwidth(s: Subject) -> float | None:
    return s.facts[COLLECTIVE] / s.time if COLLECTIVE in s.facts and s.time else None


def _link_bandwidth(s: Subject) -> float | None:
    return s.limits.link(s.world) if COLLECTIVE in s.facts and s.limits else None


metrics.fact(
    COLLECTIVE, "bytes of the collective", units.BYTES, "its bytes, as nccl-tests counts them", head="",
    after="local_bytes",
)  # fmt: skip
metrics.add(
    Metric(
        "bus_bandwidth",
        "bus bandwidth",
        units.BANDWIDTH,
        _bus_bandwidth,
        "the bytes that each device has to send, over the time: busbw of nccl-tests, which no number of devices "
        "changes as long as their links are the limit",
        "higher",
        head="bus {unit}",
        keep=ALWAYS,
        figure=5,
        sweep=5,
        limit="link_bandwidth",
    ),
    after="efficiency_high",
)
metrics.add(
    Metric(
        "algorithm_bandwidth",
        "algorithm bandwidth",
        units.BANDWIDTH,
        _algorithm_bandwidth,
        "the bytes of the collective's larger buffer, over the time: algbw of nccl-tests",
        head="algorithm {unit}",
        keep=8,
    ),
    after="bus_bandwidth",
)
metrics.add(Metric("link_bandwidth", "link", units.BANDWIDTH, _link_bandwidth), after="algorithm_bandwidth")


def twice_the_rest(size: int, world: int) -> int:
    """Each part of the buffer but the own one is sent twice: to be added, and as a sum."""
    return 2 * (world - 1) * size // world


def the_rest(size: int, world: int) -> int:
    """Each part of the buffer but the own one is sent once."""
    return (world - 1) * size // world


def all_of_it(size: int, _world: int) -> int:
    """The whole buffer is sent."""
    return size


def collective(  # noqa: PLR0913 - what tells one collective from another
    name: str,
    summary: str,
    call: Call,
    want: Callable[[Context], torch.Tensor],
    *,
    sent: Sent,
    read: Tensor,
    written: Tensor | None = None,
    split: bool = False,
    rows: tuple[str, ...] = (),
    again: Callable[[Context, torch.Tensor], torch.Tensor] | None = None,
) -> Op:
    """An op whose variants are the libraries. read: the input, which is updated in place where nothing is `written`.

    want(ctx): the output, or the updated input, as it must be on this rank. again(ctx, x): what a further call makes of
    an input x that is updated, which all ranks have alike then. split: the size is cut into a part a rank.
    """
    op = Op(
        name,
        summary,
        symbols={"N": "elements of a rank's larger buffer"},
        inputs=(read,),
        outputs=(written,) if written else (),
        dtypes=FLOATS,
        make=lambda ctx: {read.name: data(ctx, ctx.group.rank)},
        check=lambda ctx, t: check(ctx, t, (written or read).name, want, again),
        extremes=Extremes(exempt={"all": "each rank makes the data of all ranks again to check its own"}),
        work=partial(work, read=read, written=written or read, sent=sent),
    )
    unsupported = unsplittable if split else unsupported_alone
    for library, device in (("nccl", "cuda"), ("gloo", "cpu")):
        said = f"torch.distributed with {library.upper() if library == 'nccl' else 'Gloo'}"
        options: dict[str, Any] = {"role": "baseline", "rows": rows, "devices": (device,), "unsupported": unsupported}
        op.variant(library, said, **options)(partial(prepare, library=library, call=call))
    return op


def prepare(ctx: Context, library: str, call: Call) -> Launch:
    """The call in the library's group of all ranks."""
    group = process_group(library)
    ctx.report(COLLECTIVE, ctx.s.N * ctx.dtype.itemsize)

    def launch(t: Tensors) -> None:
        call(ctx, t, group)

    return launch


def work(symbols: Symbols, itemsize: int, read: Tensor, written: Tensor, sent: Sent) -> Work:
    """Each buffer goes through the memory of its device once; what is sent goes over the link."""

    def bytes_of(tensor: Tensor) -> int:
        (shape,) = tensor.shapes(symbols)
        return shape[0] * itemsize

    world = symbols["world"]
    over_link = sent(symbols["N"] * itemsize, world) if world > 1 else 0
    return Work(read=bytes_of(read), written=bytes_of(written), sent=over_link)


def unsplittable(case: Case) -> str | None:
    """Why the case can't run: it has one rank, or parts of different sizes."""
    if reason := unsupported_alone(case):
        return reason
    size = case.symbols["N"]
    return None if size % case.world == 0 else f"{size} elements can't be cut into {case.world} equal parts"


def data(ctx: Context, rank: int) -> torch.Tensor:
    """The input of a rank. Every rank can make the input of any other rank, so the check needs no communication."""
    import torch

    seed = ctx.generator.initial_seed() - ctx.group.rank + rank
    generator = torch.Generator(ctx.device).manual_seed(seed)
    (shape,) = ctx.op.inputs[0].shapes(ctx.case.values)
    return torch.randint(-LARGEST, LARGEST + 1, shape, generator=generator, device=ctx.device, dtype=ctx.dtype)


def total(ctx: Context) -> torch.Tensor:
    """The sum of all ranks' inputs, in float32, which is exact."""
    found = data(ctx, 0).float()
    for rank in range(1, ctx.group.size):
        found += data(ctx, rank)
    return found


def part(ctx: Context, whole: torch.Tensor, rank: int) -> torch.Tensor:
    """The part of a buffer that belongs to a rank."""
    return whole.chunk(ctx.group.size)[rank]


def check(
    ctx: Context,
    t: Tensors,
    name: str,
    want: Callable[[Context], torch.Tensor],
    again: Callable[[Context, torch.Tensor], torch.Tensor] | None,
) -> Iterator[Expected]:
    """Every number must be exactly what it is wanted to be: of the inputs of all ranks, or of what calls left before.

    Timed calls go on from what the last one left where the input is updated. Then the ranks have the same numbers.
    """
    import torch

    before = getattr(t.before, name, None)
    goes_on = again is not None and not torch.equal(before, data(ctx, ctx.group.rank))
    yield Expected(name, getattr(t, name), again(ctx, before) if again and goes_on else want(ctx))
