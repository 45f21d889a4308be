"""The style of figures: half a page wide or a whole one, readable in black and white and for the colour-blind."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from harness import units

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

WIDTH = 3.5
"""Inches: half of a page between its margins, or one column of two."""
WIDE = 2 * WIDTH
_DPI = 200
_FONT = "DejaVu Sans"
"""The font that comes with matplotlib, so that every machine lays a figure out alike."""
_FONTS = f"'{_FONT}', Verdana, sans-serif"
"""What a viewer of an SVG takes: the second has letters of nearly the same width."""
_TITLE_CHARACTERS = 56  # of a line, from edge to edge
_TITLE_EDGE = 0.012  # of the figure's width
_TITLE_LINE = 0.12  # inches
_LEGEND_CHARACTERS = 68
_STYLE = {
    "font.family": _FONT,
    "font.size": 7,
    "figure.titlesize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.4,
    # Text stays text: it can be searched and read aloud, and its outlines would be most of the file.
    "svg.fonttype": "none",
    # Makes ids in SVG files repeat: the same run must give the same file.
    "svg.hashsalt": "harness",
}


_origin: ContextVar[str] = ContextVar("_origin", default="")


@contextmanager
def origin(text: str) -> Iterator[None]:
    """Figures that are made inside the context say below their titles where their numbers come from."""
    before = _origin.set(text)
    try:
        yield
    finally:
        _origin.reset(before)


@contextmanager
def canvas(
    height: float, title: str, width: float = WIDTH
) -> Iterator[tuple[matplotlib.figure.Figure, matplotlib.axes.Axes]]:
    """An empty figure of `width` x `height` inches; the style holds while the context lasts, also for `save`.

    A long title takes more lines, and so does what `origin` says; the figure is higher by these.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a user's matplotlibrc says
        mpl.rcParams.update(_STYLE)
        # A figure of its own, not pyplot's: no window system, no global state.
        most = int(_TITLE_CHARACTERS * width / WIDTH)
        lines = [line for text in (title, _origin.get()) for line in textwrap.wrap(text, most)]
        height += _TITLE_LINE * (len(lines) - 1)
        figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        # The title belongs to the figure: long names of variants make the axes narrow.
        figure.suptitle("\n".join(lines), x=_TITLE_EDGE, ha="left")
        yield figure, axes


def save(figure: matplotlib.figure.Figure, path: Path) -> list[Path]:
    """Write `path`, an SVG or a PNG by its suffix, without date or version, so that equal figures are equal files."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    _take_as_it_stands(figure)
    # Not figure.savefig, which draws everything twice.
    if path.suffix == ".png":
        FigureCanvasAgg(figure).print_png(path, metadata={"Software": None})
        return [path]
    drawn = StringIO()
    FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
    path.write_text(drawn.getvalue().replace(f"'{_FONT}'", _FONTS), encoding="utf-8")
    return [path]


_FORMULA = re.compile(r"(\$(?:2\^\{\d+\}|\\mathbf\{2\^\{\d+\}\})\$)")
"""The one formula that we write, a power of two, also in bold. Any other `$` belongs to a name."""


def _take_as_it_stands(figure: matplotlib.figure.Figure) -> None:
    """Have no text of others read as a formula: one that is none would be an error of matplotlib."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for text in figure.findobj(Text):
        text.set_text(literal(text.get_text()))
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            # What axes.set_xticks makes of names. The formulas of a logarithmic axis are its own.
            if isinstance(named := axis.get_major_formatter(), FuncFormatter):
                named.func = _literal_names(named.func)


def _literal_names(name: Callable[[float, int | None], str]) -> Callable[[float, int | None], str]:
    return lambda place, index: literal(name(place, index))


def literal(text: str) -> str:
    """The text as matplotlib writes it letter by letter, but for powers of two."""
    pieces = _FORMULA.split(text)
    return "".join(piece if place % 2 else piece.replace("$", r"\$") for place, piece in enumerate(pieces))


def legend(figure: matplotlib.figure.Figure, axes: matplotlib.axes.Axes, title: str | None = None) -> None:
    """One legend below everything, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    named = dict(zip(labels, handles, strict=True))
    if named:
        columns = _legend_columns(list(named), figure.get_figwidth())
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, title=title)


def legend_rows(names: Sequence[str], width: float = WIDTH) -> int:
    """How many rows a legend of these names has, below a figure `width` inches wide."""
    return -(-len(names) // _legend_columns(names, width))


def _legend_columns(names: Sequence[str], width: float) -> int:
    share = width / WIDTH
    most = int(_LEGEND_CHARACTERS * share) // (max(map(len, names)) + 8)
    return max(1, min(int(4 * share), len(names), most))


def peak_line(draw: Callable[..., object], peak: float | None) -> None:
    """The library copy's bandwidth (B/s) as a dashed line, by `axes.axhline` or `axes.axvline`."""
    if peak is not None:
        draw(peak / 1e9, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9, label="copy peak", zorder=1.5)


def byte_axis(axes: matplotlib.axes.Axes) -> None:
    """A logarithmic axis of bytes, named at each power of ten."""
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _place: units.size(value, 1))
