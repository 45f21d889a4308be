"""The data sheet: choices, tensors, work and traffic, and what a variant may tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness import metrics, units
from harness.errors import UsageError
from harness.model import Case, Traffic, Work
from harness.ops import Choice, Context, Op, Tensor
from tests.one_test import one_test

N = {"N": "elements"}
X, Y = Tensor("x", ("N",)), Tensor("y", ("N",))


def prepare(_):
    return print


# Choices.


@one_test(
    ("choice", "usual", "allowed"),
    [
        (Choice("", ("nchw", "nhwc")), "nchw", "nchw, nhwc"),
        (Choice("", ("nchw", "nhwc"), default="nhwc"), "nhwc", "nchw, nhwc"),
        (Choice("", (2, 4, 0.5)), 2, "2, 4, 0.5"),
        (Choice("", low=0.0, high=1.0), 0.0, "a number from 0 to 1"),
        (Choice("", low=0.0, high=1.0, default=0.1), 0.1, "a number from 0 to 1"),
    ],
)
def test_a_choice_has_a_default_and_says_what_it_allows(choice, usual, allowed):
    assert (choice.usual, choice.allowed) == (usual, allowed)
    assert choice.accepts(usual)


@pytest.mark.parametrize(
    ("choice", "good", "bad"),
    [
        (Choice("", ("nchw", "nhwc")), ["nhwc"], ["NHWC", "", 1, None]),
        (Choice("", (1, 2)), [1, 2.0], ["1", 3, True]),
        (Choice("", low=0.25, high=1), [0.25, 0.5, 1], [0, 1.5, "0.5", True, float("nan"), None]),
    ],
)
def test_a_choice_accepts_what_it_allows(choice, good, bad):
    assert all(choice.accepts(value) for value in good)
    assert not any(choice.accepts(value) for value in bad)


@pytest.mark.parametrize("options", [{"values": ("a", "b"), "default": "c"}, {"low": 0.5, "high": 1.0, "default": 0.1}])
def test_a_default_that_is_not_allowed_is_refused(options):
    with pytest.raises(UsageError, match="the default of a choice is"):
        Choice("", **options)


def test_a_choice_must_not_have_the_name_of_a_size():
    with pytest.raises(UsageError, match="op 'o' has a symbol and a choice named N"):
        Op("o", "", N, choices={"N": Choice("", ("a",))})


@one_test(
    ("options", "wrong", "advice"),
    [
        ({"dtypes": ("float32", "float33")}, "op 'o' has the dtype 'float33'", "did you mean 'float32'"),
        ({"tolerance": {"half": (0, 0)}}, "op 'o' has the dtype 'half'", "did you mean 'float16'?"),
        ({"outputs": (Tensor("y", ("2 * M",)),)}, "no symbol 'M', which its '2 \\* M' uses", "allowed: N, kind, world"),
        ({"defaults": {"N": "cdiv(R, 2)"}}, "no symbol 'R'", "allowed: N, kind, world"),
        ({"flops": {"case": "2 * n"}}, "no symbol 'n', which its '2 \\* n' uses", "allowed: N, kind, world"),
        ({"items": "worlds"}, "no symbol 'worlds'", "did you mean 'world'"),
    ],
)
def test_a_dtype_and_a_symbol_must_be_known_where_an_op_is_defined(options, wrong, advice):
    with pytest.raises(UsageError, match=wrong) as error:
        Op("o", "", N, choices={"kind": Choice("", ("a",))}, **options)
    assert advice in error.value.advice
    variant = {key: tensors for key, tensors in options.items() if key in ("inputs", "outputs")}
    op = Op("o", "", N, choices={"kind": Choice("", ("a",))})
    if variant:
        with pytest.raises(UsageError, match=wrong):
            op.variant("v", "", **variant)(prepare)
    assert not op.variants


def test_an_expression_of_an_op_may_use_choices_and_the_number_of_devices():
    shape = ("cdiv(N, world)", "min(ways, 2)", 3)
    op = Op("o", "", N, (Tensor("x", shape),), choices={"ways": Choice("", (2, 4))}, items="N * world")
    assert op.inputs[0].shapes({"N": 7, "world": 2, "ways": 4}) == [(4, 2, 3)]


# Tensors.


def test_a_shape_is_expressions_or_a_function_of_sizes_and_choices():
    def by_layout(s):
        return (s["N"], 3, 5) if s["layout"] == "nhwc" else (s["N"], 5, 3)

    def several(s):
        return [(i, s["N"]) for i in range(1, 3)]

    symbols = {"N": 4, "layout": "nhwc"}
    assert Tensor("x", ("N", "2 * N", 3)).shapes(symbols) == [(4, 8, 3)]
    assert Tensor("x", by_layout).shapes(symbols) == [(4, 3, 5)]
    assert Tensor("x", several).shapes(symbols) == [(1, 4), (2, 4)]
    assert [Tensor("x", shape).is_list(symbols) for shape in (("N",), by_layout, several)] == [False, False, True]
    assert Tensor("x", several, "uint8").bytes(symbols, "float32") == 12
    assert Tensor("x", several).bytes(symbols, "float16") == 24


# Work belongs to the op, traffic to the variant.


def test_each_input_is_read_once_and_each_output_written_once():
    op = Op("o", "", N, (X, Tensor("state", (2,), "int64", inplace=True)), (Y,))
    assert op.work_of({"N": 4}, "float16") == Work(read=8 + 16, written=8 + 16)
    assert Op("none", "", N).work_of({"N": 4}, "float32") == Work()


def test_operations_may_be_in_the_type_of_the_case():
    op = Op("o", "", N, flops={"case": "2 * N", "int8": "N"})
    assert op.work_of({"N": 10}, "bfloat16").flops == (("bfloat16", 20), ("int8", 10))


def test_what_the_op_declares_is_its_work_with_flops_and_items_beside():
    op = Op(
        "o", "", N, work=lambda s, size: Work(s["N"] * size, 1), flops={"float16": "2 * N"}, items="N", item="samples"
    )
    assert op.work_of({"N": 4}, "float32") == Work(16, 1, (("float16", 8),), items=4, item="samples")
    counted = Work(0, 0, (("int8", 5),), sent=7, items=3, item="images")
    op.work = lambda s, size: counted
    assert op.work_of({"N": 4}, "float32") == counted


def test_no_variant_changes_the_work():
    op = Op("o", "", N, (X,), (Y,))
    before = op.work_of({"N": 4}, "float32")
    op.variant("lean", "", outputs=(Tensor("bits", ("cdiv(N, 8)",), "uint8"),))(prepare)
    op.variant("leaner", "", traffic=lambda s, size: Traffic(0, 0))(prepare)
    assert op.work_of({"N": 4}, "float32") == before


@pytest.mark.parametrize(
    ("arithmetic", "done"),
    [
        ("", (("float16", 40), ("int8", 10))),
        ("tf32", (("tf32", 50),)),
        (lambda s, size: (("int8", 5 * s["N"]), ("case", 45 - 5 * s["N"] + 5)), (("int8", 50), ("float16", 0))),
    ],
    ids=["as the work", "one type", "several types"],
)
def test_a_variant_says_in_which_types_it_does_the_operations_of_the_work(arithmetic, done):
    op = Op("o", "", N, (X,), (Y,), flops={"case": "4 * N", "int8": "N"})
    before = op.work_of({"N": 10}, "float16")
    op.variant("plain", "")(prepare)
    op.variant("own", "", arithmetic=arithmetic)(prepare)
    found = {name: op.work_done_by(variant, {"N": 10}, "float16") for name, variant in op.variants.items()}
    assert op.work_of({"N": 10}, "float16") == before == found["plain"], "no other variant's figures move"
    assert found["own"] == replace(before, flops=done)


def test_a_variant_can_not_add_or_drop_operations():
    op = Op("o", "", N, (X,), (Y,), flops={"case": "4 * N"})
    op.variant("fewer", "", arithmetic=lambda s, size: (("tf32", s["N"]),))(prepare)
    with pytest.raises(UsageError, match="gives 10 operations, and the work has 40") as caught:
        op.work_done_by(op.variants["fewer"], {"N": 10}, "float16")
    assert "test_sheet.py" in caught.value.message
    op.variant("unknown", "", arithmetic=lambda s, size: (("tf16", 4 * s["N"]),))(prepare)
    with pytest.raises(UsageError, match="arithmetic of variant 'unknown' has the type 'tf16'"):
        op.work_done_by(op.variants["unknown"], {"N": 10}, "float16")


def test_an_op_without_operations_has_none_in_any_type():
    op = Op("o", "", N, (X,), (Y,))
    op.variant("own", "", arithmetic="tf32")(prepare)
    assert op.work_done_by(op.variants["own"], {"N": 10}, "float16") == op.work_of({"N": 10}, "float16")


def test_traffic_is_the_variant_s_own_account_or_its_tensors_or_the_work():
    op = Op("o", "", N, (X,), (Y,), work=lambda s, size: Work(3, 2))
    op.variant("plain", "")(prepare)
    op.variant("bits", "", outputs=(Tensor("bits", ("cdiv(N, 8)",), "uint8"),))(prepare)
    op.variant("same", "", outputs=(Y,))(prepare)
    op.variant("twice", "", outputs=(Y,), traffic=lambda s, size: Traffic(2 * s["N"] * size, 0))(prepare)
    moved = {name: op.traffic_of(variant, {"N": 4}, "float32") for name, variant in op.variants.items()}
    assert moved == {"plain": Traffic(3, 2), "bits": Traffic(16, 1), "same": Traffic(16, 16), "twice": Traffic(32, 0)}


# Variants.


@one_test(
    ("role", "library"),
    [("baseline", True), ("peer", True), ("control", True), ("published", False), ("ours", False)],
)
def test_baselines_peers_and_controls_are_library_code(role, library):
    op = Op("o", "", N)
    op.variant("v", "", role=role)(prepare)
    assert op.variants["v"].is_library == library


def test_an_unknown_role_is_refused():
    with pytest.raises(UsageError, match="variant 'v' has the role 'basline'") as raised:
        Op("o", "", N).variant("v", "", role="basline")(prepare)
    assert raised.value.advice == "did you mean 'baseline'?"


# What a variant may tell and defer.


@pytest.fixture
def ctx() -> Context:
    return Context(Case("o", "v", "float32", (("N", 4),), (("layout", "nhwc"),)), None, None, None, Op("o", "", N))


def test_sizes_and_choices_are_attributes(ctx):
    assert (ctx.s.N, ctx.s.layout) == (4, "nhwc")


def test_a_fact_is_reported_and_any_other_figure_is_refused(ctx, monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", {name: m for name, m in metrics.METRICS.items() if not m.reported})
    metrics.fact("hidden", "share of communication that is hidden", units.SHARE, "", "higher")
    ctx.report("hidden", 1)
    assert ctx.facts == {"hidden": 1.0}
    # Nobody would see a time that a variant reports: it is measured.
    for name, nearest in (("hiden", "did you mean 'hidden'?"), ("time", "allowed: hidden")):
        with pytest.raises(UsageError, match=f"'{name}' can't be reported: no fact has this name") as raised:
            ctx.report(name, 1)
        assert raised.value.advice == f"metrics.fact(...) adds one; {nearest}"


def test_what_is_deferred_is_called_last_first_also_after_an_error(ctx):
    called = []
    for name in "abc":
        ctx.defer(lambda name=name: called.append(name))
    with pytest.raises(ZeroDivisionError), ctx.closing:
        _ = 1 / 0
    assert called == ["c", "b", "a"]


@pytest.mark.parametrize(
    "names", [{"symbols": {"world": "devices"}}, {"symbols": {}, "choices": {"world": Choice("w", (1,))}}]
)
def test_the_world_is_no_name_of_an_op(names):
    with pytest.raises(UsageError, match="op 'o' has a symbol or a choice named world"):
        Op("o", "", **names)


def test_the_work_may_depend_on_the_world():
    op = Op("o", "", {"N": ""}, work=lambda s, size: Work(sent=2 * (s["world"] - 1) * s["N"] * size // s["world"]))
    sent = {
        world: op.work_of(Case("o", "v", "float32", (("N", 8),), world=world).values, "float32").sent
        for world in (1, 2, 4)
    }
    assert sent == {1: 0, 2: 32, 4: 48}


# What a training step keeps.


def test_a_variant_says_how_many_bytes_of_its_outputs_a_training_step_keeps():
    op = Op("o", "", N, inputs=(X,), outputs=(Y, Tensor("mask", ("N",), "bool", kept=True)))
    op.variant("bytes", "")(prepare)
    op.variant("bits", "", outputs=(Y, Tensor("bits", ("cdiv(N, 32)",), "int32", kept=True)))(prepare)
    op.variant("nothing", "", outputs=(Y,))(prepare)
    cases = {name: Case("o", name, "float32", (("N", 64),)) for name in op.variants}
    assert {name: Context(case, None, None, None, op).facts for name, case in cases.items()} == {
        "bytes": {"kept_bytes": 64.0}, "bits": {"kept_bytes": 8.0}, "nothing": {},
    }  # fmt: skip
