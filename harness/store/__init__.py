"""Runs on disk: records as JSON (`codec`) and the folder of a run (`folder`)."""

from __future__ import annotations

from harness.store.codec import dump, parse
from harness.store.folder import HEADER, RESULTS, Writer, create, load, reopen

__all__ = ["HEADER", "RESULTS", "Writer", "create", "dump", "load", "parse", "reopen"]
