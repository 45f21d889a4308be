"""The scripts and styles of the page. Its security policy runs these and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

_HOME = Path(__file__).parent
SCRIPTS = (
    "vendor/dataTables.min.js",
    "vendor/uPlot.iife.min.js",
    "assets/core.js",
    "assets/words.js",
    "assets/table.js",
    "assets/plot.js",
    "assets/drawer.js",
    "assets/changes.js",
    "assets/main.js",
)
"""In the order in which the page runs them."""
STYLES = ("vendor/uPlot.min.css", "assets/page.css", "assets/drawer.css")


def scripts() -> list[str]:
    """The content of each script."""
    return [_read(name) for name in SCRIPTS]


def styles() -> list[str]:
    """The content of each style sheet."""
    return [_read(name) for name in STYLES]


def policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The policy of a page: these scripts and styles, pictures inside of the page, and no request at all."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    content = (_HOME / name).read_text(encoding="utf-8")
    if "</script" in content.lower() or "</style" in content.lower():
        raise ValueError(f"{name} would end the element that holds it")
    return content
