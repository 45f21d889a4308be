"""How a variant looks in pictures: by its role and its name, so that it looks the same in every picture of every run.

A role has a family of colours: grey for baselines, cold colours for what a text publishes, warm colours for ours,
purple for peers. An op that has baselines only has them in colour. The name chooses one of the family. Where two
variants of an op would get the same look, the variant that the op declares later gets the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

from harness.report.roles import foremost
from harness.report.summary import TUNED

_EDGE: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.4}
_STOUT: dict[str, Any] = {"linewidth": 2.6, "markersize": 6.5, "zorder": 2.2, **_EDGE}
_PLAIN: dict[str, Any] = {"linewidth": 1.1, "markersize": 4.5, "zorder": 2.4, **_EDGE}
_FAINT: dict[str, Any] = {"linewidth": 1.0, "markersize": 3.2, "zorder": 2.3, **_EDGE}


@dataclass(frozen=True, slots=True)
class Look:
    """A colour, and what tells it from other colours in black and white. weight: keywords of its line."""

    color: str
    hatch: str
    marker: str
    dashes: Any = "-"
    weight: str = "plain"

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line with markers."""
        weight = {"stout": _STOUT, "plain": _PLAIN, "faint": _FAINT}[self.weight]
        return {"color": self.color, "marker": self.marker, "linestyle": self.dashes, **weight}

    @property
    def bar(self) -> dict[str, Any]:
        """Keywords of a bar."""
        return {"color": self.color, "hatch": self.hatch, "edgecolor": "black", "linewidth": 0.4}


FOREMOST = Look("#D55E00", "", "o", weight="stout")
"""The variant of ours that a user would take: `tuned`, else the last one. It stands out."""
# No hatch has dots: an SVG draws each of them as a curve, which takes 200 KB.
BASELINES = (
    Look("#DDDDDD", "", "p", (0, (1, 1)), "faint"),
    Look("#555555", "", "s", "--", "faint"),
    Look("#333333", "----", "h", ":", "faint"),
    Look("#C4C4C4", "\\\\\\\\", "d", (0, (5, 1)), "faint"),
    Look("#8C8C8C", "////", "D", "-.", "faint"),
    Look("#707070", "||||", "8", (0, (3, 1, 1, 1)), "faint"),
)
PEERS = (
    Look("#CC79A7", "----", "X"),
    Look("#6A3D9A", "xxxx", "p"),
    Look("#B9A3E3", "////", "H"),
    Look("#882255", "||||", "8"),
)
PUBLISHED = (
    Look("#0072B2", "", "^"),
    Look("#56B4E9", "////", "v"),
    Look("#009E73", "\\\\\\\\", "P"),
    Look("#332288", "----", "X"),
    Look("#7FBC41", "xxxx", "*"),
    Look("#01665E", "||||", "<"),
    Look("#8DA0CB", "++++", ">"),
    Look("#00441B", "", "h"),
)
OURS = (
    Look("#E69F00", "////", "D"),
    Look("#F0E442", "++++", "s"),
    Look("#8C510A", "", "^"),
    Look("#F4A582", "\\\\\\\\", "v"),
    Look("#DFC27D", "xxxx", "P"),
    Look("#B2182B", "----", "X"),
)
_OF_ROLE = {"baseline": BASELINES, "control": BASELINES, "peer": PEERS, "published": PUBLISHED, "ours": OURS}

SERIES = (
    Look("#BBBBBB", "", "o", "-"),
    Look("#56B4E9", "////", "s", "--"),
    Look("#F0E442", "++++", "^", "-."),
    Look("#E69F00", "xxxx", "D", ":"),
    Look("#0072B2", "", "v", (0, (5, 1))),
    Look("#009E73", "\\\\\\\\", "P", (0, (3, 1, 1, 1))),
    Look("#CC79A7", "----", "X", (0, (1, 1))),
    Look("#D55E00", "||||", "*", (0, (7, 2, 1, 2))),
)
"""Looks of what is no variant, such as sizes. They are the colours of Okabe and Ito; light and dark alternate."""


def looks(roles: Mapping[str, str]) -> dict[str, Look]:
    """The look of each variant of an op. roles: the role of each variant, in the op's order."""
    return dict(_looks(tuple(roles.items())))


@lru_cache(maxsize=64)
def _looks(roles: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Look], ...]:
    known = dict(roles)
    first = TUNED if known.get(TUNED) == "ours" else foremost(known)
    found = {first: FOREMOST} if first else {}
    # Greys alone are hard to tell apart.
    are_grey = any(_OF_ROLE.get(role) is not BASELINES for _, role in roles)
    for name, role in roles:
        if name not in found:
            family = _OF_ROLE.get(role, PUBLISHED) if are_grey else PUBLISHED
            found[name] = _free(family, crc32(name.encode()), found.values())
    return tuple(found.items())


def _free(family: tuple[Look, ...], wanted: int, taken: Iterable[Look]) -> Look:
    """The look of the family that the number chooses, or the next one that is free; if none is, the chosen one."""
    start, used = wanted % len(family), set(map(id, taken))
    turned = family[start:] + family[:start]
    return next((look for look in turned if id(look) not in used), turned[0])
