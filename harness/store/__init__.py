"""Runs on disk: records as JSON (`codec`), one on each line (`lines`), in the folder of a run (`folder`).

`files` opens the files of a folder that may be somebody else's, and `soundness` says what can't be true of a record.
"""

from __future__ import annotations

from harness.store.codec import dump, parse, write
from harness.store.files import room
from harness.store.folder import ATTACHMENTS, HEADER, RESULTS, Writer, attach, by_name, create, load, place, reopen

__all__ = [
    "ATTACHMENTS",
    "HEADER",
    "RESULTS",
    "Writer",
    "attach",
    "by_name",
    "create",
    "dump",
    "load",
    "parse",
    "place",
    "reopen",
    "room",
    "write",
]
