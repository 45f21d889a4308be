"""The page and the plot of a timeline."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from harness.profile._timeline import FamilyTime, Gaps, KernelTime, Timeline
from harness.report import terminal, timeline, timeline_plot
from harness.report.formats import markdown
from tests.one_test import one_test

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
FOUND = Timeline(
    on_gpu=True,
    devices=1,
    window=2e-3,
    busy=1.5e-3,
    host=4e-4,
    gap=5e-6,
    short=Gaps(20, 1e-4),
    long=Gaps(4, 4e-4),
    kernels=(
        KernelTime("ampere_sgemm_128x64_tn", "gemm", 10, 1e-3, 0.5),
        KernelTime(ADD, "elementwise_vectorised", 14, 5e-4, 0.2497),
        KernelTime("mine<int>(float*)", "other", 1, 6e-7, 0.0003),
    ),
    families=(
        FamilyTime("gemm", 10, 1e-3, 0.5),
        FamilyTime("elementwise_vectorised", 14, 5e-4, 0.2497),
        FamilyTime("other", 1, 6e-7, 0.0003),
    ),
)
TRACE = Path("somewhere/trace.json.gz")


def cells(text: str, first: str) -> list[str]:
    """The cells of the row of a table in Markdown that begins with `first`."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {first} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_a_page_has_shares_by_family_and_the_idle_time() -> None:
    text = markdown.render(timeline.page(FOUND, TRACE))
    assert cells(text, "GEMM") == ["GEMM", "50.0%", "66.7%", "1.000 ms", "10"]
    assert cells(text, "element-wise vectorised")[1] == "25.0%"
    assert "| idle                    | 25.0% |              | 500.0 us |          |" in text
    assert cells(text, "other")[:2] == ["other", "0.0%"]
    assert "idle, host at work" in text
    assert "20.0% (400.0 us)" in text
    assert "In 80.0% of the idle time the host was inside operators" in text
    assert "In 20.0% it was elsewhere" in text
    assert cells(text, "shorter than 10 us") == ["shorter than 10 us", "20", "100.0 us", "5.0%"]
    assert cells(text, "10 us and longer") == ["10 us and longer", "4", "400.0 us", "20.0%"]
    assert "trace.json.gz opens in https://ui.perfetto.dev" in text
    assert "](plots/timeline.svg)" in text


def test_what_to_try_comes_first() -> None:
    text = markdown.render(timeline.page(FOUND, TRACE))
    assert text.index("## What to try") < text.index("## By family")
    assert cells(text, "products and convolutions in float32 without tensor cores")[1] == "50.0%"
    assert "torch.set_float32_matmul_precision('high')" in text
    idle = replace(FOUND, kernels=FOUND.kernels[2:], busy=2e-3, host=0.0)
    assert "What to try" not in markdown.render(timeline.page(idle, TRACE))


def test_a_page_has_kernels_with_counts_and_means() -> None:
    text = markdown.render(timeline.page(FOUND, TRACE))
    assert cells(text, "`ampere_sgemm_128x64_tn`") == [
        "`ampere_sgemm_128x64_tn`", "GEMM", "50.0%", "1.000 ms", "10", "100.0 us",
    ]  # fmt: skip
    many = tuple(KernelTime(f"k{number}", "other", 1, 1e-5, 0.01) for number in range(23))
    text = markdown.render(timeline.page(replace(FOUND, kernels=many), TRACE))
    assert "`k19`" in text
    assert "`k20`" not in text
    assert "3 other kernels: 3.0% together" in text


def test_operators_of_a_cpu_have_words_of_their_own() -> None:
    found = replace(FOUND, on_gpu=False, host=0.0, kernels=(KernelTime("aten::mm", "gemm", 10, 1e-3, 0.5),))
    text = markdown.render(timeline.page(found, TRACE))
    assert "By operator" in text
    assert "outside of operators" in text
    for word in ("GPU had", "host at work", "launches", "CUDA", "of busy time"):
        assert word not in text


def test_a_gpu_that_is_never_idle_has_a_page() -> None:
    busy = replace(FOUND, busy=2e-3, host=0.0, gap=0.0, short=Gaps(0, 0.0), long=Gaps(0, 0.0))
    text = markdown.render(timeline.page(busy, TRACE))
    assert "of the idle time" not in text
    assert cells(text, "idle") == ["idle", "0.0% (0 s)"]


@one_test(
    ("name", "shown"),
    [
        (ADD, "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, st…"),
        ("void at::native::(anonymous namespace)::roll<float>(float const*, float*)", "roll<float>"),
        ("void fill<float>(int, std::function<void (int)>)", "fill<float>"),
        ("nvjet_hsh_256x128_64x3_2x1_v_bz_coopA_TNT", "nvjet_hsh_256x128_64x3_2x1_v_bz_coopA_TNT"),
    ],
)
def test_names_are_short_and_still_tell_kernels_apart(name: str, shown: str) -> None:
    assert timeline.short(name) == shown


def test_a_console_shows_each_kernel_in_one_line_with_its_family() -> None:
    written = io.StringIO()
    terminal.show(timeline.page(FOUND, TRACE), Console(file=written, width=130))
    lines = written.getvalue().splitlines()
    (row,) = [line for line in lines if line.startswith("vectorized_elementwise_kernel")]
    assert re.search(r"element-wise vectorised +25\.0% +500\.0 us +14 +35\.71 us", row)


def test_the_plot_has_a_bar_and_a_text_for_each_family(tmp_path: Path) -> None:
    page, plot = timeline.write(FOUND, TRACE, tmp_path)
    assert page.read_text().startswith("# Timeline")
    assert plot == tmp_path / timeline.FIGURE
    texts = [text.text for text in ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
    for wanted in ("GEMM", "50.0%", "element-wise vectorised", "25.0%", "other", "below 0.1%", "idle"):
        assert wanted in texts
    assert "Where 2.000 ms on 1 GPU went" in texts
    again = timeline_plot.draw(FOUND, tmp_path / "again.svg")
    assert again[0].read_bytes() == plot.read_bytes()
