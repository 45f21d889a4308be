"""The plot of a timeline: a bar for each family, and one for the time in which nothing ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import units
from harness.profile import torch
from harness.profile.torch import Timeline
from harness.report.canvas import WIDE, canvas, save

_BAR = 0.17
"""Inches from one bar to the next."""
_MARGINS = 0.75
_EDGE: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.4}
_BUSY: dict[str, Any] = {"color": "#56B4E9", **_EDGE}
_IDLE: dict[str, Any] = {"color": "white", "hatch": "////", **_EDGE}
_LEAST = 0.0005
"""A smaller share would be written as 0.0%, as if there were nothing."""


def draw(found: Timeline, path: Path) -> list[Path]:
    """Draw the shares of the families, the largest at the top and the idle time below all; save as SVG or PNG."""
    shares = [(torch.FAMILIES[family.name].title, family.share, _BUSY) for family in found.families]
    shares.append(("idle", found.idle_share, _IDLE))
    device = units.plural(found.devices, "GPU") if found.on_gpu else "the CPU"
    title = f"Where {units.seconds(found.time)} on {device} went"
    with canvas(_MARGINS + _BAR * len(shares), title, WIDE) as (drawing, axes):
        for place, (_, share, look) in enumerate(shares):
            axes.barh(place, 100 * share, 0.72, **look)
            written = units.percent(share) if share >= _LEAST or not share else "below 0.1%"
            axes.annotate(written, (100 * share, place), (3, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(shares)), [name for name, _, _ in shares])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        # Room for the text beside the longest bar.
        axes.set_xlim(0, 112 * max(share for _, share, _ in shares) or 1)
        axes.set_xlabel("share of the time (%)")
        axes.grid(axis="x")
        return save(drawing, path)
