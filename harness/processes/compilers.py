"""Compilers that a process starts. They are software, which both sides of a gate have alike."""

from __future__ import annotations

import os
import re

PROGRAMS = re.compile(r"(.*/)?([^/]+-)?(g?cc|[gc]\+\+|clang(\+\+)?|nvcc|hipcc|ld|as|ar|ninja|which|uname)(-?[\d.]+)?")
"""Programs that open every file of a side on which their result depends."""
_VARIABLES = ("CC", "CXX")


def named() -> frozenset[str]:
    """The full paths, without links, of the compilers that CC and CXX name by a full path, as Inductor takes them.

    Ask before code of a side runs, which may set these variables to any file.
    """
    given = (os.environ.get(name, "") for name in _VARIABLES)
    return frozenset(os.path.realpath(path) for path in given if path.startswith("/") and PROGRAMS.fullmatch(path))
