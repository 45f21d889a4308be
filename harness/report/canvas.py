"""The style of figures: half a page wide or a whole one, readable in black and white and for the colour-blind."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import units
from harness.report.roles import foremost

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


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant looks: its colour, and what tells it from other variants without colour."""

    color: str
    hatch: str
    marker: str
    dashes: Any

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line with markers; later ones are smaller, so that lines that coincide stay visible."""
        edge = {"markeredgecolor": "black", "markeredgewidth": 0.4, "markersize": 6 - 0.5 * LOOKS.index(self)}
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes, "linewidth": 1.2, **edge}

    @property
    def bar(self) -> dict[str, Any]:
        """Keywords of a bar."""
        return {"color": self.color, "hatch": self.hatch, "edgecolor": "black", "linewidth": 0.4}


# The colours of Okabe and Ito, in an order that alternates light and dark; every second look has no hatch.
# No hatch has dots: an SVG draws each of them as a curve, which takes 200 KB.
LOOKS = (
    Look("#BBBBBB", "", "o", "-"),
    Look("#56B4E9", "////", "s", "--"),
    Look("#F0E442", "++++", "^", "-."),
    Look("#E69F00", "xxxx", "D", ":"),
    Look("#0072B2", "", "v", (0, (5, 1))),
    Look("#009E73", "\\\\\\\\", "P", (0, (3, 1, 1, 1))),
    Look("#CC79A7", "----", "X", (0, (1, 1))),
    Look("#D55E00", "||||", "*", (0, (7, 2, 1, 2))),
)

_OURS = {"color": "#D55E00", "marker": "o"}
_BASELINES = (("#999999", "s", "--"), ("#666666", "D", "-."), ("#BBBBBB", "d", (0, (5, 1))), ("#DDDDDD", "h", ":"))
_PEERS = (("#AAAAAA", "p", ":"), ("#777777", "H", (0, (3, 1, 1, 1))), ("#555555", "8", (0, (1, 1))))
_COLORS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
_MARKERS = ("^", "v", "P", "X", "*", "<", ">", "h")


def variant_lines(names: Sequence[str], roles: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Keywords of a line with markers for each variant. Ours stands out; lines that coincide with it lie above it.

    roles: the role of every variant of the op, so that a variant looks the same wherever it is shown.
    """
    edge = {"markeredgecolor": "black", "markeredgewidth": 0.4}
    plain = {"linestyle": "-", "linewidth": 1.1, "markersize": 4.5, "zorder": 2.4, **edge}
    stout = {"linestyle": "-", "linewidth": 2.6, "markersize": 6.5, "zorder": 2.2, **edge}
    faint = {"linewidth": 1.0, "markersize": 3.2, "zorder": 2.3, **edge}
    baselines = [name for name, role in roles.items() if role in ("baseline", "control")]
    peers = [name for name, role in roles.items() if role == "peer"]
    lines: dict[str, dict[str, Any]] = {}
    own = 0
    for name in names:
        if name == foremost(roles):
            lines[name] = {**_OURS, **stout}
        elif name in baselines or name in peers:
            looks, index = (_BASELINES, baselines.index(name)) if name in baselines else (_PEERS, peers.index(name))
            color, marker, dashes = looks[index % len(looks)]
            lines[name] = {"color": color, "marker": marker, "linestyle": dashes, **faint}
        else:
            color, marker = _COLORS[own % len(_COLORS)], _MARKERS[own % len(_MARKERS)]
            lines[name] = {"color": color, "marker": marker, **plain}
            own += 1
    return lines


@contextmanager
def canvas(
    height: float, title: str, width: float = WIDTH
) -> Iterator[tuple[matplotlib.figure.Figure, matplotlib.axes.Axes]]:
    """An empty figure of `width` x `height` inches; the style holds while the context lasts, also for `save`.

    A long title takes more lines, and the figure is higher by these.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a user's matplotlibrc says
        mpl.rcParams.update(_STYLE)
        # A figure of its own, not pyplot's: no window system, no global state.
        lines = textwrap.wrap(title, int(_TITLE_CHARACTERS * width / WIDTH))
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
        share = figure.get_figwidth() / WIDTH
        most = int(_LEGEND_CHARACTERS * share) // (max(map(len, named)) + 8)
        columns = max(1, min(int(4 * share), len(named), most))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns, title=title)


def peak_line(draw: Callable[..., object], peak: float | None) -> None:
    """The library copy's bandwidth (B/s) as a dashed line, by `axes.axhline` or `axes.axvline`."""
    if peak is not None:
        draw(peak / 1e9, color="#555555", linestyle=(0, (4, 3)), linewidth=0.9, label="copy peak", zorder=1.5)


def byte_axis(axes: matplotlib.axes.Axes) -> None:
    """A logarithmic axis of bytes, named at each power of ten."""
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _place: units.size(value, 1))
