from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness import report
from harness.explain import rulebook
from harness.model import Run
from harness.report import sections, summary
from harness.report.tree import Figure, Section
from harness.report.web import cases, first, parts, sources
from harness.report.web.document import Before, document


def held(content: str, name: str) -> Any:
    """The data that a page holds under this name."""
    found = re.search(f'<script type="application/gzip" id="{name}">([^<]*)</script>', content)
    assert found
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


@cache
def plain(run: Run) -> str:
    """The page without notes and pictures."""
    return document(run, (), {})


def of_norm(run: Run) -> Run:
    """The cases of norm in float32 alone, which have one picture."""
    kept = tuple(m for m in run.measurements if (m.case.op, m.case.dtype) == ("norm", "float32"))
    scenario = replace(run.header.scenarios[0], cases=tuple(m.case.id for m in kept))
    return replace(run, header=replace(run.header, scenarios=(scenario,)), measurements=kept)


def test_the_policy_names_exactly_what_stands_in_the_page(norms: Run) -> None:
    content = plain(norms)
    policy = re.search('Security-Policy" content="([^"]*)"', content)
    assert policy
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#x27;", "'").split("; "))
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        stand = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in stand]
        assert rules.pop(kind).split() == hashes
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}


def test_the_page_names_no_other_file_and_has_no_style_in_an_attribute(norms: Run) -> None:
    content = plain(norms)
    markup = re.sub(r"<(script|style)[ >].*?</\1>", "", content, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', markup) == []
    assert " style=" not in markup


def test_the_first_screen_says_what_was_measured_where_and_when(norms: Run) -> None:
    head = document(norms, ("some results are old",), {}).partition("</header>")[0]
    for told in (
        "A GPU",
        "2026-01-01 10:00",
        "torch 2.13.0",
        "commit 0123abc with uncommitted changes",
        "36 ok, 1 crashed",
    ):
        assert f"<li>{told}</li>" in head
    assert "some results are old" in document(norms, ("some results are old",), {})


def test_every_case_is_in_the_data_once_the_fastest_of_a_comparison_first(norms: Run) -> None:
    rows = held(plain(norms), "rows")
    assert len(rows["id"]) == len(set(rows["id"])) == 37
    assert rows["id"][:3] == [f"norm/{name}/float32/M1000-N49" for name in ("compile", "eager", "tuned")]
    assert rows["best"][:3] == [1, 0, 0]
    assert rows["behind"][:3] == [0, 0, 1]
    columns = {column["name"]: column for column in rows["columns"]}
    assert columns["of_ceiling"]["texts"][:3] == ["80.0%", "50.0%", "40.0%"]
    assert columns["time"]["values"][0] == pytest.approx(rows["time"][0])
    assert columns["speedup"]["head"] == "vs baseline"


def test_a_rate_is_written_by_the_page_and_its_head_has_no_prefix(
    measured: Callable[..., Any], make_run: Callable[..., Run]
) -> None:
    one = measured("eager", "float32", (("N", 64),))
    run = make_run([replace(one, work=replace(one.work, items=64_000_000, item="rows"))])
    (items,) = (own for own in held(document(run, (), {}), "rows")["columns"] if own["name"] == "items")
    assert (items["head"], items["kind"], items["texts"]) == ("rows/s", "rate", None)


def test_a_number_that_no_json_has_is_left_out() -> None:
    assert cases._number(float("nan")) is cases._number(float("inf")) is cases._number(None) is None
    assert cases._number(1 / 3) == 0.3333333


def test_the_details_of_a_case_tell_why_and_how_to_measure_again(norms: Run) -> None:
    content = plain(norms)
    rows, more = held(content, "rows"), held(content, "more")
    place = rows["id"].index("norm/tuned/float32/M1000-N49")
    told = more["html"][place]
    for part in (
        "Why it takes so long",
        "norm_kernel",
        "harness run norm --only norm/tuned/float32/M1000-N49",
        "11, in 1",
    ):
        assert part in told
    low, high, counts = more["histogram"][place]
    assert low < rows["time"][place] < high
    assert sum(counts) == 11
    failed = more["html"][rows["status"].index("crashed")]
    assert "lost &lt;here&gt;" in failed
    assert "Why it takes so long" not in failed


def test_a_rule_that_fails_costs_its_own_words_alone(norms: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such counter")

    monkeypatch.setattr(rulebook, "_told", lambda *_: fail(_))
    more = held(document(norms, (), {}), "more")
    assert "no reason can be given: ValueError: no such counter" in more["html"][0]


def test_a_second_run_stands_first_with_what_changed(norms: Run) -> None:
    key = norms.measurements[0].case.id
    slower = [
        replace(m, samples=tuple(2 * s for s in m.samples)) if m.case.id == key else m for m in norms.measurements
    ]
    old = replace(norms, measurements=tuple(slower[:-1]))
    changes = document(norms, (), {}, Before("old", old)).partition("<section id='changes'>")[2].partition("<details>")
    assert "Compared with old, measured 2026-01-01T10:00:00+00:00 on A GPU: 1 faster, 0 slower, " in changes[0]
    assert "2.000x" in changes[0]
    assert "1 without a time in one of the runs" in changes[2]
    same = document(norms, (), {}, Before("old", norms))
    assert "No time differs by more than its noise." in same


def test_an_empty_run_has_a_page(norms: Run) -> None:
    content = document(replace(norms, measurements=()), (), {})
    assert "No case has a time." in content
    assert "<section id='ops'>" not in content
    assert held(content, "rows")["id"] == []


def test_what_was_lost_is_told_once_with_the_rest_folded(norms: Run) -> None:
    lost = tuple(f"results.jsonl:{line}: one result is lost" for line in range(3))
    content = (
        document(replace(norms, losses=lost), (), {}).partition("<section id='trust'>")[2].partition("</section>")[0]
    )
    shown, _, folded = content.partition("<details>")
    assert shown.count("is lost") == 1
    assert "<summary>Lost: 2 more</summary>" in folded
    assert folded.count("is lost") == 2


@pytest.mark.slow
def test_the_page_of_500_cases_is_small(measured: Callable[..., Any], make_run: Callable[..., Run]) -> None:
    sizes = [(variant, 64 + number) for number in range(167) for variant in ("eager", "compile", "tuned")]
    run = make_run([measured(variant, "float32", (("N", size),), 0.5) for variant, size in sizes])
    assert len(document(run, (), {}).encode()) < 1_500_000


@pytest.mark.slow  # test_formats.py has all formats
def test_the_format_takes_the_pictures_that_the_plots_left(
    norms: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = report.write(of_norm(norms), tmp_path, ["html", "plots"])
    assert len(paths) > 2
    assert paths[-1] == tmp_path / "report.html"
    content = paths[-1].read_text(encoding="utf-8")
    assert content.count("<img ") >= len(paths) - 1
    for path in paths[:-1]:
        assert base64.b64encode(path.read_bytes()).decode() in content


def test_the_worst_figure_is_the_one_of_the_op_that_is_farthest_behind(norms: Run) -> None:
    assert summary.summarise(norms).worst_op.op == "norm"
    pictures = {
        f"plots/{op}-{dtype}.svg": f"<svg>{op}</svg>".encode() for op in ("norm", "scale") for dtype in ("float32",)
    }
    content = document(norms, (), pictures).partition("<section id='figures'>")[2].partition("</section>")[0]
    assert base64.b64encode(b"<svg>norm</svg>").decode() in content


@pytest.mark.slow
def test_the_worst_comparison_is_drawn_for_the_page_alone(norms: Run, tmp_path: Path) -> None:
    plot = first.worst_plot(norms)
    assert plot
    assert plot.title == "norm float32, M1000-N49"
    assert list(plot.rows["series"]) == ["compile", "eager", "tuned"]
    report.write(of_norm(norms), tmp_path, ["html"])
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    worst, figures = (
        content.partition(f"<section id='{name}'>")[2].partition("</section>")[0] for name in ("worst", "figures")
    )
    assert f'alt="{plot.alt}"' in worst
    assert 'alt="norm float32: ' in figures
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_a_variant_alone_is_no_comparison(measured: Callable[..., Any], make_run: Callable[..., Run]) -> None:
    run = make_run([measured("tuned", "float32", (("N", 64),), 0.5)])
    assert summary.summarise(run).worst_op
    assert first.worst_plot(run) is None


def test_an_op_has_its_own_figures_first(norms: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Figure("plots/own.svg", "its own")
    monkeypatch.setattr(
        sections, "sections", lambda lines: [Section("s", (own,))] if lines[0].case.op == "norm" else []
    )
    plots = ["plots/norm-float32.svg", "plots/norm-float16.svg", own.path]
    content = document(norms, (), dict.fromkeys(plots, b"<svg/>"))
    figures = content.partition("<section id='figures'>")[2].partition("</section>")[0]
    assert re.findall('alt="([^":]*)', figures) == ["its own", "norm float32"]


def test_scripts_are_read_as_they_are_and_none_ends_its_element() -> None:
    assert len(parts.scripts()) == len(parts.SCRIPTS)
    assert not any("</script" in script for script in parts.scripts())


def test_colours_of_a_source_are_few_elements() -> None:
    html = sources.highlighted("a.cu", "// one\n// two\nint a = 1;\n")
    assert html == "<i class=c>// one\n// two\n</i><i class=k>int </i>a = <i class=n>1</i>;\n"
