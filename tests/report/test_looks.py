"""How variants look: the same in every run and picture, and different from each other."""

from __future__ import annotations

from itertools import permutations

from harness.ops import Catalogue
from harness.report.looks import BASELINES, FOREMOST, OURS, PEERS, PUBLISHED, SERIES, looks
from tests.one_test import one_test

ROLES = {"eager": "baseline", "compile": "baseline", "naive": "published", "packed": "published", "tuned": "ours"}


def test_a_role_gives_the_family_and_ours_stands_out() -> None:
    found = looks(ROLES | {"flex": "peer"})
    assert {found["eager"], found["compile"]} <= set(BASELINES)
    assert {found["naive"], found["packed"]} <= set(PUBLISHED)
    assert found["flex"] in PEERS
    assert found["tuned"] is FOREMOST
    assert looks({"eager": "baseline", "tuned": "ours", "later": "ours"})["later"] in OURS


def test_what_else_an_op_has_changes_no_look_but_where_two_would_be_alike() -> None:
    whole = looks(ROLES)
    for names in permutations(ROLES, 3):
        part = looks({name: ROLES[name] for name in names} | {"tuned": "ours"})
        assert all(part[name] is whole[name] for name in names)


def test_an_op_of_baselines_only_has_colours() -> None:
    assert set(looks({"nccl": "baseline", "gloo": "baseline"}).values()) <= set(PUBLISHED)


@one_test("op", Catalogue().values(), ids=lambda op: op.name)
def test_variants_of_an_op_look_different(op: object) -> None:
    variants = op.variants.values()  # type: ignore[attr-defined]
    found = looks({variant.name: variant.role for variant in variants})
    if len(found) <= 8:
        assert len(set(found.values())) == len(found)


def test_looks_of_a_family_differ_without_colour() -> None:
    for family in (BASELINES, PEERS, PUBLISHED, OURS, SERIES):
        assert len({look.marker for look in family}) == len(family) == len({look.color for look in family})
