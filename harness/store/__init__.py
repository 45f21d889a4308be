"""Runs on disk: records as JSON (`codec`) and the folder of a run (`folder`)."""

from __future__ import annotations

from harness.store.codec import dump, parse, write
from harness.store.folder import ATTACHMENTS, HEADER, RESULTS, Writer, attach, create, load, reopen

__all__ = ["ATTACHMENTS", "HEADER", "RESULTS", "Writer", "attach", "create", "dump", "load", "parse", "reopen", "write"]
