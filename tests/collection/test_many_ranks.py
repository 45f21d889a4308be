"""Two and four ranks with gloo: collectives and training steps, whose rings, parts and means need many ranks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.collection.ops.collectives import _collectives  # noqa: F401 - declares metrics
from harness.metrics import METRICS, Subject
from harness.model import Case, Job, Measurement, Timing
from harness.processes.messages import Measure, Measured, decode_reply, encode
from tests.rare import rare

SCRIPT = Path(__file__).parent / "many_ranks.py"
TIMING = Timing(precision=0.5, max_time=0.02, timeout=60.0)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
SIZES = {"bert_scaling": 4, "resnet50_scaling": 4, "swin_scaling": 2, "llama_scaling": 4}
"""Images or sequences of a step on each rank: few, but enough that the losses fall."""
BERT = (("model", "bert_toy"), ("step", "eager"), ("clip", "none"))
LLAMA, PARTS = (
    (("model", "llama_toy"), ("step", "eager"), ("clip", "none"), ("micro_batches", count)) for count in (1, 2)
)
RESNET = (("model", "resnet_toy"), ("step", "eager"), ("layout", "nhwc"))
STEPS: dict[int, list[tuple[str, str, tuple[tuple[str, str | int], ...]]]] = {
    2: [],
    4: [("resnet50_scaling", "ddp", RESNET), ("resnet50_scaling", "copies", RESNET)],
}
"""Training steps beside the collectives, by the number of ranks."""
OTHERS = [
    ("bert_scaling", "ddp", BERT),
    ("bert_scaling", "after", BERT),
    ("bert_scaling", "ddp_bfloat16", BERT),
    ("bert_scaling", "buckets", BERT),
    ("resnet50_scaling", "buckets", RESNET),
    ("bert_scaling", "copies", BERT),
    ("llama_scaling", "fsdp", PARTS),  # its other ways, steps/training/test_sharded.py compares with one process
    ("bert_scaling", "replicas", BERT),
    ("bert_scaling", "no_sync", BERT),
    ("resnet50_scaling", "after", RESNET),
    ("swin_scaling", "amp", (("model", "swin_toy"), ("step", "eager"))),
    ("llama_scaling", "chunked_half", LLAMA),
]
"""Steps of two ranks: gradients averaged meanwhile, afterwards, in halves, in parts, or not. The first is timed."""

By = dict[Case, list[Measurement]]


def collective(op: str, world: int, n: int = 4096, dtype: str = "float32") -> Case:
    return Case(op, "gloo", dtype, (("N", n),), world=world, device="cpu", cache="hot")


def odd(world: int) -> int:
    """Elements that the ranks can't share equally, though half as many ranks can."""
    return 4096 + world // 2


def steps(world: int, chosen: Sequence[tuple[str, str, tuple[tuple[str, str | int], ...]]] | None = None) -> list[Case]:
    return [
        Case(op, way, "bfloat16" if op == "llama_scaling" else "float16", (("B", SIZES[op]),), choices, world, "cpu")
        for op, way, choices in chosen or STEPS[world]
    ]


def cases(world: int) -> list[Case]:
    sizes = [*((op, 4096) for op in COLLECTIVES), ("all_to_all", odd(world)), ("all_reduce", 2), ("all_to_all", world)]
    halves = [collective(op, world, dtype="float16") for op in ("all_reduce", "all_gather") if world == 2]
    beside = [
        Case("gemm_all_reduce", way, "bfloat16", (("M", 24), ("N", 4096)), world=world, device="cpu")
        for way in ("in_turn", "beside")
    ]
    return [*(collective(op, world, n) for op, n in sizes), *halves, *beside, *steps(world)]


TIMED = (
    *(collective("all_reduce", world) for world in STEPS),
    collective("all_gather", 2, dtype="float16"),
)
"""Cases that are timed. Other cases are only checked, since all cases of a kind are timed alike."""


WRONG = {
    Case("all_gather", "keeps", "float32", (("N", 4096),), world=2, device="cpu"): "rank 1: y: ",
    Case("all_reduce", "idles", "float32", (("N", 4096),), world=2, device="cpu"): "rank 0: x: ",
}
"""Cases of two ranks that are wrong in the timed calls alone, with what is found."""
DRIFTS = Case("bert_scaling", "drifts", "float16", (("B", 4),), BERT, 2, "cpu")
"""A training step that is wrong in the timed calls alone."""


def measured(folder: Path, asked: Sequence[tuple[Case, bool]]) -> By:
    """The measurements of all ranks by their case. asked: cases, and whether they are timed."""
    questions = [Measure(Job(case, TIMING), 0, timed) for case, timed in asked]
    command = [sys.executable, str(SCRIPT), str(folder)]
    done = subprocess.run(
        command, input=b"".join(map(encode, questions)), capture_output=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    measurements: By = {}
    for world in sorted({case.world for case, _ in asked}):
        for rank in range(world):
            for reply in map(decode_reply, (folder / f"{world}-{rank}").read_bytes().splitlines()):
                assert isinstance(reply, Measured)
                measurements.setdefault(reply.measurement.case, []).append(reply.measurement)
    return measurements


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], By]:
    """found(world): the measurements of all cases on so many ranks, which are made once."""

    @cache
    def of(world: int) -> By:
        asked = [(case, case in TIMED) for case in cases(world)]
        return measured(
            tmp_path_factory.mktemp("ranks"), asked + [(case, True) for case in WRONG if case.world == world]
        )

    return of


def with_rare(cases: Iterable[Case]) -> list[Any]:
    """Four ranks are for `make slow-test`: what they do is written for any number of ranks."""
    return [rare(case) if case.world > 2 else case for case in cases]


@pytest.mark.slow  # the tests below have collectives, steps/training/test_scaling.py what steps add
def test_other_steps_of_two_ranks_are_right(tmp_path: Path) -> None:
    timed, *checked = steps(2, OTHERS)
    for case, told in measured(tmp_path, [(timed, True), *((case, False) for case in checked)]).items():
        assert [(m.status, m.error) for m in told] == [("ok", None)] * 2, case.id
        assert told[0].work
        assert (told[0].work.items, told[0].work.sent > 0) == (2 * SIZES[case.op], True)
        assert {m.timer for m in told} == {"steady" if case == timed else ""}


@pytest.mark.parametrize("world", [2, rare(4)])
def test_every_rank_gets_what_it_should(found: Callable[[int], By], world: int) -> None:
    """Each rank checks its own result, so all must be fine. What can't be cut into equal parts is refused on all."""
    refused = ("unsupported", f"rank 0: {odd(world)} elements can't be cut into {world} equal parts")
    for case in cases(world):
        want = refused if case.values.get("N") == odd(world) else ("ok", None)
        assert [(m.status, m.error) for m in found(case.world)[case]] == [want] * world, case.id


def assert_wrong_when_timed(told: Sequence[Measurement], begins: str) -> None:
    assert [m.status for m in told] == ["wrong"] * 2
    [error] = {m.error for m in told}
    assert error
    assert error.startswith(begins)
    assert error.endswith("(found in the timed calls; the first call was right)")


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_what_is_wrong_in_timed_calls_alone_is_wrong_on_every_rank(found: Callable[[int], By], case: Case) -> None:
    assert_wrong_when_timed(found(case.world)[case], WRONG[case])


@pytest.mark.slow  # the test above has collectives, steps/training/test_scaling.py ranks that drift apart
def test_a_step_whose_ranks_drift_apart_when_timed_is_wrong(tmp_path: Path) -> None:
    assert_wrong_when_timed(measured(tmp_path, [(DRIFTS, True)])[DRIFTS], "rank 0: weights: they differ between ranks")


@pytest.mark.parametrize("case", with_rare(TIMED), ids=lambda case: case.id)
def test_times_are_those_of_the_slowest_rank(found: Callable[[int], By], case: Case) -> None:
    [(samples, timer)] = {(m.samples, m.timer) for m in found(case.world)[case]}
    assert samples
    assert timer == "host"


@pytest.mark.parametrize("case", with_rare(TIMED), ids=lambda case: case.id)
def test_bandwidths_are_those_of_nccl_tests(found: Callable[[int], By], case: Case) -> None:
    """The size of an all-gather is the size of all parts together."""
    measured = found(case.world)[case][0]
    subject = Subject.of(measured, None)
    bus, algorithm = (METRICS[name].value(subject) for name in ("bus_bandwidth", "algorithm_bandwidth"))
    size = 4096 * {"float16": 2, "float32": 4}[case.dtype]
    factor = {"all_reduce": 2, "all_gather": 1}[case.op] * (case.world - 1) / case.world
    assert algorithm == pytest.approx(size / measured.time)
    assert bus == pytest.approx(factor * algorithm)


@pytest.mark.parametrize("case", with_rare(step for world in STEPS for step in steps(world)), ids=lambda case: case.id)
def test_items_are_those_of_all_devices(found: Callable[[int], By], case: Case) -> None:
    step = found(case.world)[case][0]
    assert step.work
    assert (step.work.items, step.work.sent > 0) == (SIZES[case.op] * case.world, True)
