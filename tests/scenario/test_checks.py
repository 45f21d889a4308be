"""What a scenario file may say, and what is said of one that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.model import Claim, Curve, Expectation, Timing
from harness.ops import Catalogue, Op
from harness.scenario import Definition, Selection, load, plan
from harness.scenario.definition import Setting
from tests.one_test import one_test

Write = Callable[..., Path]
Refused = Callable[[str], list[tuple[str, str]]]
Loaded = Callable[..., Definition]

Catalogue()  # The collection's ops declare metrics, which messages name.
ONE = "shapes: [{M: 3, N: 4}]\n"
FLOORS = (
    "bandwidth, block_snr, bus_bandwidth, decode_rate, efficiency, flops, items, merging_snr, of_ceiling, of_expected, "
    "of_peak, snr, speedup, tokens"
)


def test_defaults(loaded: Loaded) -> None:
    definition = loaded(ONE)
    assert definition == Definition(
        name="s",
        file=Path("s.yaml"),
        title="t",
        op="add",
        settings=(Setting((("M", 3), ("N", 4))),),
        dtypes=("float32", "float16", "bfloat16"),
        variants=("fast", "eager", "slow"),
        baseline="eager",
        shows="",
        source="",
        rows=(),
        tags=(),
        cache="cold",
        timing=Timing(),
        expect=(),
        claims=(),
        curve=None,
        plot="",
    )


def test_everything_that_a_file_may_say(loaded: Loaded) -> None:
    definition = loaded(
        """
shows: what
source: a text
rows: [R1, O12]
shapes: [{M: 3, N: 4}]
dtypes: [float16]
variants: [slow, eager, slow]
baseline: slow
tags: [a, b]
cache: hot
timing: {precision: 0.01, max_time: 1, timeout: 60}
expect:
  eager: {bandwidth: 1350e9, of_ceiling: 0.95}
  slow: [{of_ceiling: 0.9, where: "*/M3-*"}, {of_ceiling: 0.8, speedup: 2}]
claims:
  - {row: R2, variant: fast, over: slow, metric: speedup, value: 2, hardware: A100, where: "*/M3-*", text: twice}
  - {row: R3, variant: fast, metric: time, value: 1.5e-6, hardware: A10}
  - {row: R3, variant: fast, over: slow, metric: speedup, hardware: A10, text: faster}
  - {row: R3, variant: fast, metric: of_peak, says: nothing, hardware: A10}
  - {row: R3, variant: fast, base: {M: 3}, metric: speedup, value: 0.8, says: worse, within: 0.1, hardware: A10}
  - {row: R3, variant: fast, over: slow, base: {N: 4}, metric: speedup, says: worse, hardware: A10}
curve: {over: M * N, label: elements, by: M, littles_law: true}
plot: snr
"""
    )
    assert definition.curve == Curve("M * N", "elements", by="M", littles_law=True)
    assert definition.plot == "snr"
    assert definition.variants == ("slow", "eager")
    assert definition.baseline == "slow"
    assert (definition.shows, definition.source, definition.rows) == ("what", "a text", ("R1", "O12"))
    assert (definition.dtypes, definition.tags, definition.cache) == (("float16",), ("a", "b"), "hot")
    assert definition.timing == Timing(precision=0.01, max_time=1.0, timeout=60.0)
    assert definition.expect == (
        Expectation("eager", "bandwidth", 1.35e12),
        Expectation("eager", "of_ceiling", 0.95),
        Expectation("slow", "of_ceiling", 0.9, where="*/M3-*"),
        Expectation("slow", "of_ceiling", 0.8),
        Expectation("slow", "speedup", 2.0),
    )
    assert definition.claims == (
        Claim("R2", "fast", "speedup", 2.0, "A100", over="slow", where="*/M3-*", text="twice"),
        Claim("R3", "fast", "time", 1.5e-6, "A10"),
        Claim("R3", "fast", "speedup", None, "A10", over="slow", text="faster"),
        Claim("R3", "fast", "of_peak", None, "A10", says="nothing"),
        Claim("R3", "fast", "speedup", 0.8, "A10", says="worse", within=0.1, base=(("M", 3),)),
        Claim("R3", "fast", "speedup", None, "A10", over="slow", says="worse", base=(("N", 4),)),
    )


def test_the_baseline_is_the_first_variant_where_there_is_no_eager(loaded: Loaded) -> None:
    assert loaded(ONE + "variants: [slow, fast]\n").baseline == "slow"
    assert loaded("shapes: [{N: 8}]\n", op="shrink").baseline == "first"


def test_all_problems_of_a_file_come_at_once_in_its_order(refused: Refused) -> None:
    text = """\
title: ''
op: add
shape: []
shapes:
  - {M: 0, N: 4}
  - {M: 1, N: true, O: 2}
dtypes: [float23]
variants: [egaer, slow]
baseline: fast
rows: [R1, r2]
tags: quick
cache: warm
timing: {precison: 1, precision: 2, max_time: true, timeout: .inf}
expect:
  fast: {of_ceilin: 0.9, of_peak: quick}
claims:
  - {row: R1, variant: fsat, metric: speedupp, value: 0, hardware: A100}
  - {row: R1, variant: fast, metric: speedup, value: 1, hardware: A100}
  - {row: R1, variant: fast, metric: time, value: 1, over: eagr}
  - nothing
  - {row: R1, variant: fast, metric: time, hardware: A100}
  - {row: R1, variant: fast, metric: time, says: nothing, value: 1, hardware: A100}
"""
    assert refused(text) == [
        ("1: title", "must not be empty, found ''"),
        ("3: shape", "unknown key 'shape'; did you mean 'shapes'?"),
        ("5: shapes[0].M", "a size must be 1 or more; found 0"),
        ("6: shapes[1].N", "a size is an integer or an expression such as 2**27 // N, found true"),
        ("6: shapes[1].O", "op 'add' has no such symbol; allowed: M, N"),
        ("7: dtypes[0]", "op 'add' has no dtype 'float23'; did you mean 'float32'?"),
        ("8: variants[0]", "op 'add' has no variant 'egaer'; did you mean 'eager'?"),
        ("9: baseline", "this scenario measures no variant 'fast'; allowed: slow"),
        ("10: rows[1]", "must be a capital and a number, such as R2, found 'r2'"),
        ("11: tags", "must be a list, found 'quick'"),
        ("12: cache", "'warm' isn't known here; allowed: cold, hot"),
        ("13: timing.max_time", "must be a number, found true"),
        ("13: timing.precision", "must be less than 1, found 2"),
        ("13: timing.precison", "unknown key 'precison'; did you mean 'precision'?"),
        ("13: timing.timeout", "must be a finite number, found inf"),
        ("15: expect.fast", "this scenario measures no variant 'fast'; allowed: slow"),
        ("15: expect.fast.of_ceilin", "unknown key 'of_ceilin'; did you mean 'of_ceiling'?"),
        ("15: expect.fast.of_peak", "must be a number, found 'quick'"),
        ("17: claims[0].metric", "'speedupp' isn't known here; did you mean 'speedup'?"),
        ("17: claims[0].value", "must be more than 0, found 0"),
        ("17: claims[0].variant", "op 'add' has no variant 'fsat'; did you mean 'fast'?"),
        ("18: claims[1].over", "is missing; a claim of speedup compares with another variant: name that variant"),
        ("19: claims[2].hardware", "is missing; What the text measured on."),
        ("19: claims[2].over", "op 'add' has no variant 'eagr'; did you mean 'eager'?"),
        ("20: claims[3]", "must be a mapping, found 'nothing'"),
        (
            "21: claims[4].value",
            "is missing; give the text's time, or 'says: nothing' where the text gives none",
        ),
        (
            "22: claims[5].value",
            "stands beside 'says: nothing'; remove one of them: a text gives a figure, or it doesn't",
        ),
    ]


def test_missing_keys_say_what_belongs_there(refused: Refused) -> None:
    problems = dict(refused("shows: nothing\n"))
    assert problems["1: title"] == "is missing; What is measured, in a few words."
    assert problems.keys() == {"1: title", "1: op", "1: shapes"}


def test_an_unknown_op_doesn_t_hide_the_rest(refused: Refused) -> None:
    assert refused("title: 7\nop: ad\nshapes: [{X: 0}]\ndtypes: [flaot32]\nvariants: [fats]\ncach: hot\n") == [
        ("1: title", "must be text, found 7"),
        ("2: op", "no op is named 'ad'; did you mean 'add'?"),
        # All that follows is compared with the op that is surely meant.
        ("3: shapes[0]", "no size for M, N; op 'add' has M, N"),
        ("3: shapes[0].X", "op 'add' has no such symbol; allowed: M, N"),
        ("4: dtypes[0]", "op 'add' has no dtype 'flaot32'; did you mean 'float32'?"),
        ("5: variants[0]", "op 'add' has no variant 'fats'; did you mean 'fast'?"),
        ("6: cach", "unknown key 'cach'; did you mean 'cache'?"),
    ]


@pytest.mark.parametrize("key", ["timeout", "max_time", "precision"])
def test_a_key_of_timing_beside_it_is_told_where_it_belongs(refused: Refused, key: str) -> None:
    assert refused(f"title: t\nop: add\n{ONE}{key}: 5\n") == [
        (f"4: {key}", f"unknown key '{key}'; did you mean 'timing.{key}'?"),
    ]


def test_an_op_that_no_other_resembles_hides_no_more_than_its_own_names(refused: Refused) -> None:
    """Its variants and symbols may be right: perhaps only --ops was forgotten."""
    text = "title: t\nop: mine\nshapes: [{X: 8}]\ndtypes: [float32, flaot32]\nvariants: [own]\ncache: lukewarm\n"
    assert refused(text) == [
        (
            "2: op",
            "no op is named 'mine'; an op of your own needs its file: --ops FILE; allowed: add, scale, shrink",
        ),
        ("4: dtypes[1]", "no dtype is named 'flaot32'; did you mean 'float32'?"),
        ("6: cache", "'lukewarm' isn't known here; allowed: cold, hot"),
    ]


def test_an_op_without_variants_is_nothing_to_measure(refused: Refused, catalogue: dict[str, Op]) -> None:
    catalogue["add"].variants.clear()
    assert refused(f"title: t\nop: add\n{ONE}") == [
        ("2: op", "op 'add' has no variants; add one with @OP.variant(...)"),
    ]


@one_test(
    ("shapes", "said"),
    [
        ("7", "found 7"),
        ("", "found nothing"),
        ("{M: 1, N: 2}", "found a mapping with the keys M, N"),
        ("{prodct: {M: 1}}", "found a mapping with the keys prodct"),
        ("{zip: {M: 1}, product: {M: 1}}", "found a mapping with the keys zip, product"),
    ],
)
def test_shapes_come_in_three_forms(refused: Refused, shapes: str, said: str) -> None:
    assert refused(f"title: t\nop: add\nshapes: {shapes}\n") == [
        ("3: shapes", f"must be a list of shapes, or {{product: ...}}, or {{zip: ...}}, {said}")
    ]


@pytest.mark.parametrize(
    ("shapes", "place"),
    [("[]", "shapes"), ("{zip: {}}", "shapes.zip"), ("{product: {M: [], N: 1}}", "shapes.product.M")],
)
def test_nothing_is_no_shape(refused: Refused, shapes: str, place: str) -> None:
    [(where, said)] = refused(f"title: t\nop: add\nshapes: {shapes}\n")
    assert where == f"3: {place}"
    assert said.startswith("must not be empty")


def test_a_claim_about_no_case_is_refused(refused: Refused) -> None:
    claim = "{row: R1, variant: fast, metric: time, value: 1, hardware: A10, where: 'add/*/M4-*'}"
    assert refused(f"title: t\nop: add\n{ONE}claims: [{claim}]\n") == [
        (
            "4: claims[0].where",
            "'add/*/M4-*' matches no case of this scenario; cases are such as add/bfloat16/M3-N4",
        )
    ]


@one_test(
    ("claim", "place", "said"),
    [
        ("metric: speedup, base: {M: 4}", "base", "a mapping with the keys M is of no case of this scenario; "),
        ("metric: speedup, base: {O: 4}", "base", "op 'add' has no symbol and no choice 'O'; "),
        (
            "metric: time, value: 1, base: {M: 3}",
            "base",
            "stands beside the metric time; it is for metrics that compare",
        ),
        ("metric: speedup, base: {M: [3]}", "base.M", "must be a name or a number, found a list"),
        ("metric: speedup, over: slow, says: equal", "value", "is missing; give the text's speed-up"),
        ("metric: speedup, over: slow, says: slower", "says", "'slower' isn't known here; "),
        ("metric: time, value: 1, within: 1", "within", "must be less than 1, found 1"),
    ],
)
def test_a_claim_that_can_not_be_judged_is_refused(refused: Refused, claim: str, place: str, said: str) -> None:
    [(where, told)] = refused(f"title: t\nop: add\n{ONE}claims: [{{row: R1, variant: fast, hardware: A10, {claim}}}]\n")
    assert where == f"4: claims[0].{place}"
    assert told.startswith(said)


@one_test(
    ("floors", "place", "said"),
    [
        ("0.9", "expect.fast", "must be a mapping, found 0.9"),
        ("[]", "expect.fast", "must not be empty, found an empty list"),
        (
            "{where: '*'}",
            "expect.fast",
            f"has no floor; allowed: {FLOORS}",
        ),
        ("{of_ceiling: }", "expect.fast.of_ceiling", "must be a number, found nothing"),
        (
            "{time: 1e-6}",
            "expect.fast.time",
            f"a floor can't be of time; allowed: {FLOORS}",
        ),
        ("[{speedup: 1}, {speedup: 0}]", "expect.fast[1].speedup", "must be more than 0, found 0"),
        (
            "{speedup: 1, where: 'add/*/M4-*'}",
            "expect.fast.where",
            "'add/*/M4-*' matches no case of this scenario; cases are such as add/bfloat16/M3-N4",
        ),
    ],
)
def test_a_floor_that_holds_nothing_is_refused(refused: Refused, floors: str, place: str, said: str) -> None:
    assert refused(f"title: t\nop: add\n{ONE}expect: {{fast: {floors}}}\n") == [(f"4: {place}", said)]


@one_test(
    ("curve", "place", "said"),
    [
        ("{over: M * n, label: x}", "over", "'M * n' (with M = 3) uses 'n', which isn't a symbol here; allowed: M, N"),
        ("{over: M - 3, label: x}", "over", "what a curve is over must be 1 or more; 'M - 3' (with M = 3) is 0"),
        ("{over: N //, label: x}", "over", "'N //' isn't an expression (integers, symbols,"),
        ("{over: 7, label: x}", "over", "must be text, found 7"),
        ("{over: N, label: x, by: m}", "by", "op 'add' has no symbol 'm'; allowed: M, N"),
        ("{over: N, label: x, littles_law: 1}", "littles_law", "must be true or false, found 1"),
        ("{over: N, labels: x}", "labels", "unknown key 'labels'; did you mean 'label'?"),
    ],
)
def test_a_curve_that_can_not_be_drawn_is_refused(refused: Refused, curve: str, place: str, said: str) -> None:
    problems = dict(refused(f"title: t\nop: add\n{ONE}curve: {curve}\n"))
    assert problems[f"4: curve.{place}"].startswith(said)


def test_a_plot_of_an_unknown_metric_is_refused(refused: Refused) -> None:
    ((place, said),) = refused(f"title: t\nop: add\n{ONE}plot: snrr\n")
    assert (place, "did you mean 'snr'" in said) == ("4: plot", True)


def test_a_curve_is_a_mapping(refused: Refused) -> None:
    assert refused(f"title: t\nop: add\n{ONE}curve: M * N\n") == [
        ("4: curve", "must be a mapping, found 'M * N'"),
    ]


def test_problems_of_all_files_come_together(write: Write, catalogue: dict[str, Op]) -> None:
    Path("folder").mkdir()
    files = [
        write(f"title: t\nop: add\n{ONE}", "a.yaml"),
        write("title: [\n", "b.yaml"),
        write(f"op: add\n{ONE}", "c.yaml"),
        write(f"title: t\nop: add\n{ONE}", "folder/a.yaml"),
    ]
    with pytest.raises(InputError) as caught:
        load(files, catalogue)
    assert [problem.where for problem in caught.value.problems] == ["b.yaml:2", "c.yaml:1: title", "folder/a.yaml"]
    assert caught.value.problems[2].message == "another scenario is named 'a' too: a.yaml"


SEVERAL = """\
title: t
op: add
shapes: [{M: 3, N: 4}]
---
title: u
op: shrink
shapes: [{N: 8}]
---
title: v
op: add
shapes: [{M: 5, N: 6}]
dtypes: [float16]
"""


def test_documents_of_a_file_are_scenarios_named_by_their_op(write: Write, catalogue: dict[str, Op]) -> None:
    definitions = load([write(SEVERAL, "ci.yaml")], catalogue)
    assert [(d.name, d.title, d.op, d.file) for d in definitions] == [
        ("ci.add", "t", "add", Path("ci.yaml")),
        ("ci.shrink", "u", "shrink", Path("ci.yaml")),
        ("ci.add.2", "v", "add", Path("ci.yaml")),
    ]
    chosen = plan(definitions, catalogue, Selection("cuda"))
    assert [scenario.name for scenario in chosen.scenarios] == ["ci.add", "ci.shrink", "ci.add.2"]
    assert [job.case.id for job in chosen.jobs if job.case.variant == "fast"] == [
        "add/fast/float32/M3-N4",
        "add/fast/float16/M3-N4",
        "add/fast/bfloat16/M3-N4",
        "add/fast/float16/M5-N6",
    ]


def test_problems_of_all_documents_have_their_lines(refused: Refused) -> None:
    assert refused(SEVERAL.replace("N: 8", "N: 0").replace("title: v", "titel: v")) == [
        ("7: shapes[0].N", "a size must be 1 or more; found 0"),
        ("9: titel", "unknown key 'titel'; did you mean 'title'?"),
        ("9: title", "is missing; What is measured, in a few words."),
    ]


def test_a_file_of_several_is_told_once_if_its_names_are_taken(write: Write, catalogue: dict[str, Op]) -> None:
    Path("folder").mkdir()
    with pytest.raises(InputError) as caught:
        load([write(SEVERAL, "ci.yaml"), write(SEVERAL, "folder/ci.yaml")], catalogue)
    [problem] = caught.value.problems
    assert (problem.where, problem.message) == ("folder/ci.yaml", "another scenario is named 'ci.add' too: ci.yaml")


def test_a_floor_in_percent_is_told_how_shares_are_written(refused: Refused) -> None:
    floor = f"title: t\nop: add\n{ONE}expect: {{fast: {{of_peak: %s}}}}\n"
    [(_, said)] = refused(floor % "94")
    assert said == "must be 10 or less, found 94; 1 is 100%"
    assert refused(floor % "94%")[0][1] == "must be a number, found '94%'; 1 is 100%"
