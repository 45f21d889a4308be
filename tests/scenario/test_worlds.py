"""Every scenario of several devices, planned for one, two, four and eight of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from harness.limits import Needs
from harness.ops import Catalogue
from harness.scenario import Plan, Selection, load, plan

SCENARIOS = Path(__file__).parent.parent.parent / "scenarios"
WORLDS = (1, 2, 4, 8)
KEY = re.compile(r"^world: .*$", re.MULTILINE)
FILES = [file for file in sorted(SCENARIOS.glob("*.yaml")) if KEY.search(file.read_text(encoding="utf-8"))]
CATALOGUE = Catalogue()
NEED_OTHERS = ("nccl", "in_turn", "beside", "no_sync", "after", "ddp", "ddp_bfloat16", "buckets", "copies")
SHARDED = ("fsdp", "fsdp_keep", "fsdp_ours")
ALONE = "one device has nobody to communicate with: give world: 2 or more"


def planned(file: Path, device: str, folder: Path) -> Plan:
    """The plan of all documents of a file, each with all worlds in the place of its own."""
    text = file.read_text(encoding="utf-8")
    assert len(KEY.findall(text)) == text.count("\nop: ")  # otherwise some documents would keep their own
    changed = folder / file.name
    changed.write_text(KEY.sub(f"world: {list(WORLDS)}", text), encoding="utf-8")
    return plan(load([changed], CATALOGUE), CATALOGUE, Selection(device))


def test_the_files_are_those_of_several_devices() -> None:
    assert [file.stem for file in FILES] == [
        "collectives",
        "collectives_beside",
        "scaling",
        "scaling_autotune",
        "scaling_graphs",
        "scaling_llama",
        "scaling_small",
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_world_has_the_same_cases(file: Path, tmp_path: Path) -> None:
    """Each with the work of its world, and the limits that it is compared with."""
    found = planned(file, "cuda", tmp_path)
    cases = [job.case for job in found.jobs]
    assert len({case.id for case in cases}) == len(cases) > 0
    kinds = Counter((case.op, case.variant, case.dtype, case.shape, case.choices) for case in cases)
    assert set(kinds.values()) == {len(WORLDS)}
    works = {case: CATALOGUE[case.op].work_of(case.values, case.dtype) for case in cases}
    for case, work in works.items():
        assert bool(work.sent) == (case.world > 1), case.id
        if case.op.endswith("_scaling"):
            assert work.items == case.world * case.values["B"], case.id
    assert Needs.of((work, case.world) for case, work in works.items()).worlds == (2, 4, 8)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_world_cannot_do_is_refused_in_words(file: Path, tmp_path: Path) -> None:
    """One rank has nobody to talk to; 2 elements have no part for each of four ranks, or of eight. Other cases run."""
    for job in planned(file, "cuda", tmp_path).jobs:
        case = job.case
        refuse = CATALOGUE[case.op].variants[case.variant].unsupported
        refused = refuse(case) if refuse else None
        split = case.op in ("all_gather", "reduce_scatter", "all_to_all")
        if case.world == 1 and case.variant in NEED_OTHERS + SHARDED:
            assert refused == ALONE, case.id
        elif split and case.values["N"] < case.world:
            assert refused == f"2 elements can't be cut into {case.world} equal parts", case.id
        else:
            assert refused is None, case.id


def test_a_cpu_has_all_worlds_of_what_needs_no_gpu(tmp_path: Path) -> None:
    (small,) = [file for file in FILES if file.stem == "scaling_small"]
    found = Counter(job.case.world for job in planned(small, "cpu", tmp_path).jobs)
    assert len(set(found.values())) == 1
    assert found.keys() == set(WORLDS)
