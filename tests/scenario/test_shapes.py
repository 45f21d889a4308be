"""Lists, products and zips of sizes, and expressions in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.ops import Op, Tensor
from harness.scenario import Definition
from tests.one_test import one_test

Refused = Callable[[str], list[tuple[str, str]]]
Loaded = Callable[..., Definition]


def shapes_of(definition: Definition) -> list[tuple[tuple[str, int], ...]]:
    return [setting.shape for setting in definition.settings]


def sizes(definition: Definition) -> list[tuple[int, ...]]:
    return [tuple(size for _, size in shape) for shape in shapes_of(definition)]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ("[{N: 4, M: 3}, {M: 5, N: 6}, {M: 3, N: 4}]", [(3, 4), (5, 6)]),
        ("[{M: 2**27 // N, N: 512}]", [(262144, 512)]),
        ("[{M: '64', N: 'max(M, 100) * 2'}]", [(64, 200)]),
        ("{product: {M: [1, 2], N: [3, 4]}}", [(1, 3), (1, 4), (2, 3), (2, 4)]),
        ("{product: {N: [2, 4], M: 2**10 // N}}", [(512, 2), (256, 4)]),
        ("{product: {M: [1, 2], N: [M, 2 * M]}}", [(1, 1), (1, 2), (2, 2), (2, 4)]),
        ("{zip: {M: [1, 2, 3], N: [4, 5, 2 * M]}}", [(1, 4), (2, 5), (3, 6)]),
        ("{zip: {M: [1, 2], N: 7}}", [(1, 7), (2, 7)]),
        ("{zip: {M: 1, N: 2}}", [(1, 2)]),
    ],
)
def test_forms(loaded: Loaded, shapes: str, expected: list[tuple[int, ...]]) -> None:
    definition = loaded(f"shapes: {shapes}\n")
    assert sizes(definition) == expected
    assert all([symbol for symbol, _ in shape] == ["M", "N"] for shape in shapes_of(definition))


def test_symbols_left_out_take_the_op_s_default(loaded: Loaded) -> None:
    assert sizes(loaded("shapes: [{N: 8}, {N: 8, K: 3}]\n", op="shrink")) == [(8, 4), (8, 3)]


def test_a_size_whose_default_is_0_may_be_0(loaded: Loaded, refused: Refused, catalogue: dict[str, Op]) -> None:
    catalogue["add"].defaults = {"M": "0"}
    assert sizes(loaded("shapes: [{N: 8}, {M: 0, N: 4}, {M: 1, N: 4}]\n")) == [(0, 8), (0, 4), (1, 4)]
    assert refused("title: t\nop: add\nshapes: [{M: 2 - N, N: 3}, {M: 0, N: 0}]\n") == [
        ("3: shapes[0].M", "a size must be 0 or more; '2 - N' (with N = 3) is -1"),
        ("3: shapes[1].N", "a size must be 1 or more; found 0"),
    ]


@one_test(
    ("shape", "place", "said"),
    [
        ("{M: 0, N: 1}", "M", "a size must be 1 or more; found 0"),
        ("{M: -3, N: 1}", "M", "a size must be 1 or more; found -3"),
        ("{M: 1.5, N: 1}", "M", "a size is an integer or an expression such as 2**27 // N, found 1.5"),
        ("{M: 1e3, N: 1}", "M", "a size is an integer or an expression such as 2**27 // N, found 1000.0"),
        ("{M: yes, N: 1}", "M", "a size is an integer or an expression such as 2**27 // N, found true"),
        ("{M: , N: 1}", "M", "a size is an integer or an expression such as 2**27 // N, found nothing"),
        ("{M: 4 // N, N: 8}", "M", "a size must be 1 or more; '4 // N' (with N = 8) is 0"),
        ("{M: 4 / N, N: 2}", "M", "'4 / N' (with N = 2) divides with '/', which gives a fraction; write '//'"),
        ("{M: 8 // (N - 1), N: 1}", "M", "'8 // (N - 1)' (with N = 1) divides by zero"),
        ("{M: 2**N, N: 63}", "M", "'2**N' (with N = 63) overflows 64 bits"),
        ("{M: 9223372036854775808, N: 1}", "M", "'9223372036854775808' overflows 64 bits"),
        ("{M: 2 * k, N: 1}", "M", "'2 * k' uses 'k', which isn't a symbol here; allowed: M, N"),
        ("{M: M + 1, N: 1}", "M", "depends on itself: M -> M"),
        ("{M: N, N: M}", "M", "depends on itself: M -> N -> M"),
        ("{m: 1, M: 1, N: 1}", "m", "op 'add' has no such symbol; allowed: M, N"),
    ],
)
def test_a_wrong_size_is_told_once_at_its_place(refused: Refused, shape: str, place: str, said: str) -> None:
    assert refused(f"title: t\nop: add\nshapes:\n- {shape}\n") == [(f"4: shapes[0].{place}", said)]


def test_an_expression_can_not_call_out(refused: Refused) -> None:
    [(where, said)] = refused("title: t\nop: add\nshapes: [{M: __import__('os').getpid(), N: 1}]\n")
    assert where == "3: shapes[0].M"
    assert "isn't integer arithmetic" in said


def test_an_expression_that_yaml_cut_at_a_comma(refused: Refused) -> None:
    said = dict(refused("title: t\nop: add\nshapes: [{M: 1, N: max(M, 2)}]\n"))
    assert said["3: shapes[0].N"].startswith("'max(M' isn't an expression")
    assert said["3: shapes[0].N"].endswith("quote an expression that holds a comma")


def test_a_missing_symbol_is_told_and_what_is_made_of_it_is_not(refused: Refused) -> None:
    assert refused("title: t\nop: add\nshapes: [{M: 2 * N}]\n") == [
        ("3: shapes[0]", "no size for N; op 'add' has M, N"),
    ]


def test_a_wrong_item_of_a_list_is_told_once_with_its_own_line(refused: Refused) -> None:
    text = "title: t\nop: add\nshapes:\n  product:\n    M: [4, 2]\n    N:\n    - 1\n    - 3 // M\n    - M //\n"
    assert [where for where, _ in refused(text)] == ["8: shapes.product.N[1]", "9: shapes.product.N[2]"]
    assert refused(text)[0][1] == "a size must be 1 or more; '3 // M' (with M = 4) is 0"


def test_zipped_lists_are_of_one_length(refused: Refused) -> None:
    assert refused("title: t\nop: add\nshapes:\n  zip:\n    M: [1, 2, 3]\n    N: [1, 2]\n") == [
        ("4: shapes.zip", "the lists must be of one length: M has 3, N has 2")
    ]


def test_tensors_that_64_bits_can_not_count(refused: Refused, loaded: Loaded) -> None:
    assert refused("title: t\nop: add\nshapes: [{M: 2**31, N: 2**30}]\n") == [
        ("3: shapes[0]", "tensor 'a' overflows 64 bits: it has 9.22e+18 bytes")
    ]
    # The half as wide types still fit.
    assert sizes(loaded("shapes: [{M: 2**31, N: 2**30}]\ndtypes: [float16]\n")) == [(2**31, 2**30)]


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("{N: 8, K: 2**32}", "op 'shrink' can't have this shape: overflows 64 bits"),
        ("{N: 8, K: 1}", "tensor 'y' has a negative size"),
    ],
)
def test_sizes_that_the_op_makes_of_them_count_too(refused: Refused, shape: str, said: str) -> None:
    assert refused(f"title: t\nop: shrink\nshapes: [{shape}]\n") == [("3: shapes[0]", said)]


def test_a_plug_in_that_raises_is_named(refused: Refused, catalogue: dict[str, Op]) -> None:
    catalogue["add"].inputs = (Tensor("a", lambda symbols: [(1 // (symbols["M"] - 3),)]),)
    assert refused("title: t\nop: add\nshapes: [{M: 3, N: 4}]\n") == [
        ("3: shapes[0]", "op 'add' can't have this shape: ZeroDivisionError: integer division or modulo by zero")
    ]


CHOSEN = {"layout": "forward", "keep": "yes", "factor": 0.5}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("shapes: [{N: 4}]", [{}]),
        ("shapes: [{N: 4}]\nchoices: {layout: backward}", [{"layout": "backward"}]),
        ("shapes: [{N: 4, layout: backward}, {N: 4}]", [{"layout": "backward"}, {}]),
        ("shapes: {product: {N: 4, factor: [1, 0.25]}}", [{"factor": 1}, {"factor": 0.25}]),
        ("shapes: {zip: {N: 4, layout: [backward, forward], factor: [1, 2]}}",
         [{"layout": "backward", "factor": 1}, {"factor": 2}]),
        # YAML reads a bare no as false.
        ("shapes: [{N: 4}]\nchoices: {keep: [no, yes, 'no']}", [{"keep": "no"}, {}]),
        ("shapes: [{N: 4, layout: backward}]\nchoices: {factor: [0, 2]}",
         [{"layout": "backward", "factor": 0}, {"layout": "backward", "factor": 2}]),
    ],
)  # fmt: skip
def test_choices(loaded: Loaded, text: str, expected: list[dict[str, object]]) -> None:
    settings = loaded(f"{text}\n", op="scale").settings
    assert [dict(setting.choices) for setting in settings] == [CHOSEN | chosen for chosen in expected]
    assert all([name for name, _ in setting.choices] == list(CHOSEN) for setting in settings)


@one_test(
    ("text", "place", "said"),
    [
        ("choices: {layuot: forward}", "4: choices.layuot", "op 'scale' has no such choice; did you mean 'layout'?"),
        (
            "choices: {layout: [forward, up]}",
            "4: choices.layout[1]",
            "'up' isn't a value of this choice; allowed: forward, backward",
        ),
        ("choices: {factor: 3}", "4: choices.factor", "3 isn't a value of this choice; allowed: a number from 0 to 2"),
        (
            "choices: {factor: big}",
            "4: choices.factor",
            "'big' isn't a value of this choice; allowed: a number from 0 to 2",
        ),
        ("choices: {keep: 1}", "4: choices.keep", "1 isn't a value of this choice; allowed: yes, no"),
        ("choices: {keep: []}", "4: choices.keep", "must not be empty, found an empty list"),
        ("choices: {keep: }", "4: choices.keep", "must be a name or a number, found nothing"),
        ("choices: {keep: [[yes]]}", "4: choices.keep[0]", "must be a name or a number, found a list"),
        ("world: 0", "4: world", "must be 1 or more, found 0"),
        ("world: [1, two]", "4: world[1]", "must be an integer, found 'two'"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(refused: Refused, text: str, place: str, said: str) -> None:
    assert refused(f"title: t\nop: scale\nshapes: [{{N: 4}}]\n{text}\n") == [(place, said)]


def test_a_choice_stands_in_one_place(refused: Refused) -> None:
    text = "title: t\nop: scale\nshapes: [{N: 4, layout: forward}, {N: 4, layout: side}]\nchoices: {layout: forward}\n"
    assert refused(text)[0] == ("3: shapes[0].layout", "is set in 'choices' too; remove one of the two")


def test_an_op_without_choices_says_so(refused: Refused) -> None:
    assert refused("title: t\nop: add\nshapes: [{M: 1, N: 4}]\nchoices: {p: 1}\n") == [
        ("4: choices.p", "op 'add' has no such choice; leave it out: this op has no choices")
    ]


def test_tensors_may_depend_on_choices(refused: Refused) -> None:
    text = "title: t\nop: scale\nshapes: [{N: 2**61 - 1}]\nchoices: {keep: [no, yes]}\n"
    assert refused(text) == [("3: shapes[0]", "tensor 'x' overflows 64 bits: it has 1.84e+19 bytes")]


def test_operations_of_an_unknown_type_are_refused(refused: Refused, catalogue: dict[str, Op]) -> None:
    """Their peak isn't measured, so that the share of the ceiling would be one of the memory alone."""
    catalogue["shrink"].flops = {"fp16": "N"}
    [(place, said)] = refused("title: t\nop: shrink\nshapes: [{N: 8}]\n")
    assert place == "3: shapes[0]"
    assert said.startswith("op 'shrink' counts operations in 'fp16', whose peak can't be measured (allowed: float32,")
