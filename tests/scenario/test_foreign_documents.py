"""YAML of anybody: every text ends with problems and their lines, or with a scenario, and none takes long."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import MOST_PROBLEMS, InputError
from harness.ops import Op
from harness.scenario import checks, documents, find, finding, load
from tests.one_test import one_test
from tests.properties import bounded

Refused = Callable[[str], list[tuple[str, str]]]
Write = Callable[..., Path]
FINE = "title: t\nop: add\nshapes: [{M: 1, N: 2}]\n"


@one_test(
    ("value", "kind"),
    [
        ("!!bool maybe", "bool"),
        ('!!int ""', "int"),
        ("!!int x", "int"),
        ("!!float x", "float"),
        ("!!timestamp x", "timestamp"),
        ("!!timestamp 2020-99-99", "timestamp"),
        ("!!binary é", "binary"),
        ("!!binary aGk=", "binary"),
        ("!!set x", "set"),
        ("!!seq x", "seq"),
        ("!!map x", "map"),
        ("!!omap x", "omap"),
        ("!!python/object/apply:os.system id", "python/object/apply:os.system"),
        ("!<" + "x" * 500 + "> y", "x" * 79 + "…"),
        ("0x" + "f" * 5_000, "int"),
        ("0b" + "1" * 5_000, "int"),
        ("9" * 5_000, "int"),
        ("1" + ":1" * 5_000, "int"),
        ("1." + "1" * 5_000, "float"),
    ],
    ids=lambda _: "",
)
def test_a_value_that_its_tag_does_not_suit_is_told_with_its_line(refused: Refused, value: str, kind: str) -> None:
    told = refused(f"{FINE}plot: {value}\n")
    assert {place for place, _ in told} == {"4: plot"}
    assert kind in told[0][1]
    assert "can't be read as" in told[0][1]
    assert max(len(said) for _, said in told) < 600


def test_mappings_are_not_merged(refused: Refused) -> None:
    merge = "mappings aren't merged here; write the keys out"
    assert refused(f"{FINE}<<: {{cache: hot}}\n") == [("4: <<", merge)]
    told = refused("title: t\nop: add\nshapes: [&a {M: 1, N: 2}, {<<: *a, N: 3}]\n")
    assert ("3: shapes[1].<<", merge) in told


def bomb(levels: int, first: str = "x", key: str = "tags") -> str:
    """A document in which each level refers nine times to the level below."""
    lines = [f"a0: &a0 [{', '.join([first] * 9)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return FINE + "\n".join([*lines, f"{key}: *a{levels - 1}"]) + "\n"


@one_test(
    "text",
    [
        bomb(15),
        "---\n".join([bomb(4)] * 4),
        f"{FINE}a: &a {'x' * 100_000}\ntags: [{', '.join(['*a'] * 300)}]\n",
        f"{FINE}tags: [{', '.join(['a'] * 30_000)}]\n",
        FINE + "".join(f"k{number}: 1\n" for number in range(30_000)),
    ],
    ids=["aliases", "aliases over documents", "aliases of a long text", "a list", "keys"],
)
def test_values_have_a_limit_wherever_they_are_referred_to(refused: Refused, text: str) -> None:
    [(_, said)] = refused(text)
    assert "more than 20,000 keys and values, the limit" in said


def test_aliases_of_aliases_are_levels(refused: Refused) -> None:
    lines = ["a0: &a0 [x]", *(f"a{number}: &a{number} [*a{number - 1}]" for number in range(1, 5_000))]
    assert refused(FINE + "\n".join(lines)) == [
        ("s.yaml", "is nested more than 20 levels deep; 'harness list scenario quick' names the file of an example")
    ]


def test_documents_and_bytes_have_a_limit(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("--- {}\n" * 501) == [("s.yaml", f"has more than 500 scenarios, the limit; {documents._FEWER}")]
    monkeypatch.setattr(documents, "_MOST_BYTES", 1 << 20)
    assert refused("#" * (2 << 20)) == [("s.yaml", "can't be read: it has more than 1 MiB, which is the limit")]


@pytest.mark.parametrize(
    ("shapes", "count"),
    [
        ("product: {M: [ROWS], N: [ROWS]}", "540,000"),
        ("product: {M: [ROWS], N: [ROWS], A: [ROWS], B: [ROWS], C: [ROWS], D: [ROWS]}", "more than 1,000,000,000,000"),
        ("zip: {M: [ROWS, ROWS, ROWS, ROWS, ROWS, ROWS], N: 1}", "10,800"),
    ],
    ids=["product", "uncountable", "zip"],
)
def test_cases_have_a_limit_that_is_found_before_one_is_made(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, shapes: str, count: str
) -> None:
    monkeypatch.setattr("harness.scenario.shapes._rows", lambda *_: pytest.fail("made shapes"))
    rows = ", ".join(map(str, range(1, 301)))
    found = refused(f"title: t\nop: add\ndtypes: [float32, float16]\nshapes:\n  {shapes.replace('ROWS', rows)}\n")
    assert ("4: shapes", f"makes {count} cases; 10,000 is the limit of a scenario") in [
        (place, said.partition("; shorten")[0]) for place, said in found
    ]


def test_choices_and_worlds_count_as_well(refused: Refused) -> None:
    factors = ", ".join(f"0.{number:04}" for number in range(1, 1_500))
    text = (
        f"title: t\nop: scale\nshapes: [{{N: 8}}]\nchoices: {{factor: [{factors}]}}\nworld: [1, 2, 4, 8, 16, 32, 64]\n"
    )
    assert refused(text)[0][1].startswith("makes 10,493 cases; 10,000 is the limit of a scenario")


def test_all_files_together_have_a_limit(
    write: Write, catalogue: dict[str, Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_MOST_CASES", 20)
    files = [write(FINE, f"{name}.yaml") for name in "abcd"]
    with pytest.raises(InputError, match=r"c\.yaml: with the files before it, it makes 27 cases; 20 is the limit"):
        load(files, catalogue)


@one_test(
    ("line", "said"),
    [
        ("timing: {max_time: 1e15}", "must be 86400 or less, found 1000000000000000.0"),
        ("timing: {timeout: 86401}", "must be 86400 or less, found 86401"),
        ("timing: {timeout: .inf}", "must be a finite number, found inf"),
        ("timing: {max_time: .nan}", "must be "),
        ("timing: {precision: .nan}", "must be "),
        ("world: [1, 1000000000000000]", "must be 1024 or less, found 1000000000000000"),
    ],
)
def test_numbers_have_limits(refused: Refused, line: str, said: str) -> None:
    [(_, told)] = refused(f"{FINE}{line}\n")
    assert told.startswith(said)


def test_of_many_problems_the_first_are_told(refused: Refused, write: Write, catalogue: dict[str, Op]) -> None:
    file = write(FINE + "".join(f"k{number}: 1\n" for number in range(400)))
    with pytest.raises(InputError) as caught:
        load([file], catalogue)
    told = caught.value.told()
    assert len(told) == MOST_PROBLEMS + 1
    assert told[0].startswith("s.yaml:4: k0: unknown key 'k0'")
    assert told[-1] == "and 350 more"


def test_long_values_are_cut_in_messages(write: Write, catalogue: dict[str, Op]) -> None:
    long = "x" * 15_000
    text = f"title: {{a: 1}}\nop: {long}\n{long}: 1\nshapes: [{{{long}: {long}}}]\ndtypes: [{long}]\n"
    with pytest.raises(InputError) as caught:
        load([write(text)], catalogue)
    assert max(map(len, caught.value.told())) < 700
    with pytest.raises(InputError) as caught:
        load([write(text.replace(long, "add", 1))], catalogue)
    assert max(map(len, caught.value.told())) < 700


def test_what_is_no_file_is_not_opened(write: Write, catalogue: dict[str, Op]) -> None:
    write(FINE, "a.yaml")
    os.mkfifo("pipe.yaml")
    Path("zero.yaml").symlink_to("/dev/zero")
    with pytest.raises(InputError) as caught:
        load(find(["."]), catalogue)
    said = "can't be read: it is a pipe, a socket or a device, not a file"
    assert [(p.where, p.message) for p in caught.value.problems] == [("pipe.yaml", said), ("zero.yaml", said)]
    with pytest.raises(InputError) as caught:
        find(["pipe.yaml", "/dev/zero"])
    assert [(p.where, p.message) for p in caught.value.problems] == [("pipe.yaml", said), ("/dev/zero", said)]


def test_a_folder_has_a_limit_of_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write(FINE, f"{number}.yaml")
    monkeypatch.setattr(finding, "_MOST_FILES", 4)
    with pytest.raises(InputError, match="holds 5 scenarios; 4 is the limit"):
        find(["."])


WORDS = st.sampled_from(
    [
        *(
            "title",
            "op",
            "add",
            "scale",
            "shapes",
            "product",
            "zip",
            "M",
            "N",
            "timing",
            "max_time",
            "choices",
            "claims",
        ),
        *("expect", "fast", "of_peak", "curve", "over", "world", "dtypes", "float32", "variants", "tags", "where"),
        *(
            "!!int",
            "!!bool",
            "!!set",
            "&a",
            "*a",
            "<<",
            "---",
            "- ",
            "? ",
            ": ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "|",
            ">",
            "\n",
        ),
        *("\n  ", "\n    ", "#", "'", '"', "0x1f", "1e15", ".nan", "-1", "2**62", "M // 0", "2020-01-01", "yes", "~"),
    ]
)


@pytest.mark.slow  # the tests above have documents that are no scenarios
@bounded
@given(st.lists(WORDS | st.text(st.characters(codec="utf-8"), max_size=3), max_size=25).map(" ".join), st.booleans())
def test_any_text_is_a_scenario_or_has_problems(write: Write, catalogue: dict[str, Op], text: str, ahead: bool) -> None:
    file = write(FINE + text if ahead else text)
    try:
        load([file], catalogue)
    except InputError as error:
        told = error.told()
    else:
        told = [str(file)]
    assert all(line.startswith("s.yaml") for line in told)
