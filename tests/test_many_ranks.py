"""Four and eight ranks with gloo: what rings, parts and means are where there are more ranks than two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.metrics import METRICS, Subject
from harness.model import Case, Job, Measurement, Timing
from harness.processes.messages import Measure, Measured, decode_reply, encode

SCRIPT = Path(__file__).parent / "many_ranks.py"
TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
ODD = 4098
"""Elements that neither four nor eight ranks can share equally."""
SIZE = 4
"""Images of a step on each rank."""
TOYS = {
    4: ("swin_scaling", "amp", (("model", "swin_toy"), ("step", "eager"))),
    8: ("resnet50_scaling", "ddp", (("model", "resnet_toy"), ("step", "eager"), ("layout", "nhwc"))),
}
"""Training steps for each number of ranks: one of a rung, and one of a way."""

By = dict[Case, list[Measurement]]


def cases(world: int) -> list[Case]:
    sizes = [*((op, 4096) for op in COLLECTIVES), ("all_to_all", ODD), ("all_reduce", 2), ("all_to_all", world)]
    made = [Case(op, "gloo", "float32", (("N", n),), world=world, device="cpu", cache="hot") for op, n in sizes]
    op, variant, choices = TOYS[world]
    return [*made, Case(op, variant, "float16", (("B", SIZE),), choices, world, "cpu")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> By:
    """The measurements of all ranks by their case. The first case of each world is timed, the others are checked."""
    folder = tmp_path_factory.mktemp("ranks")
    questions = [Measure(Job(case, TIMING), 0, case is made[0]) for made in map(cases, TOYS) for case in made]
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(
        command, input=b"".join(map(encode, questions)), capture_output=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    measurements: By = {}
    for world in TOYS:
        for rank in range(world):
            for reply in map(decode_reply, (folder / f"{world}-{rank}").read_bytes().splitlines()):
                assert isinstance(reply, Measured)
                measurements.setdefault(reply.measurement.case, []).append(reply.measurement)
    return measurements


@pytest.mark.parametrize("world", TOYS)
def test_every_rank_gets_what_it_should(found: By, world: int) -> None:
    """Each rank checks its own result, so all must be fine. What can't be cut into equal parts is refused on all."""
    refused = ("unsupported", f"rank 0: {ODD} elements can't be cut into {world} equal parts")
    for case in cases(world):
        want = refused if case.values.get("N") == ODD else ("ok", None)
        assert [(m.status, m.error) for m in found[case]] == [want] * world, case.id


@pytest.mark.parametrize("world", TOYS)
def test_figures_are_those_of_all_ranks(found: By, world: int) -> None:
    """Times are the slowest rank's, the bus bandwidth is that of nccl-tests, and items are those of all devices."""
    every = cases(world)
    assert len({measurement.samples for measurement in found[every[0]]}) == 1
    subject = Subject.of(found[every[0]][0], None)
    bus, algorithm = (METRICS[name].value(subject) for name in ("bus_bandwidth", "algorithm_bandwidth"))
    assert bus
    assert algorithm
    assert bus == pytest.approx(2 * (world - 1) / world * algorithm)

    step = found[every[-1]][0]
    assert step.work
    assert step.work.items == SIZE * world
