"""Asks a process in which code of others runs, and outlives it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import foreign
from harness.errors import Exit, HarnessError, MachineError, UsageError, brief
from harness.processes import python

_MODULE = "harness.judge.child"
_MOST_BYTES = 64 << 20
_LAST = 4096  # bytes of what the process printed


class AnswerError(Exception):
    """The process gave no answer. The text says why, in one line."""


def ask(
    action: str, request: Mapping[str, Any], seconds: float, *, variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the process answers. variables: of its environment, beside this process's.

    Raises the error that the harness found there, and AnswerError if the code raised anything else, ended the process,
    or took longer than so many seconds.
    """
    with tempfile.TemporaryDirectory(prefix="judge-") as folder, tempfile.TemporaryFile() as printed:
        asked, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        asked.write_text(json.dumps(request), encoding="utf-8")
        process = subprocess.Popen(
            python.command(_MODULE, [action, str(asked), str(answer)]),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**python.environment(), **(variables or {})},
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AnswerError(f"it doesn't end within {seconds:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed.seek(max(0, printed.tell() - _LAST))
        return _read(answer, process.returncode, printed.read().decode(errors="replace"))


def _read(answer: Path, status: int, said: str) -> dict[str, Any]:
    """The answer in a file."""
    try:
        found = dict(json.loads(foreign.read(answer, _MOST_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):  # code of others may have written it
        last = said.strip().splitlines()[-1:]
        known = {number.value: number.name for number in signal.Signals}
        how = f"signal {known.get(-status, -status)}" if status < 0 else f"exit status {status}"
        raise AnswerError(brief(foreign.printable(" ".join([f"the process ended by {how}", *last])))) from None
    if "error" in found:
        raise _error(found)
    return found


def _error(found: Mapping[str, Any]) -> Exception:
    """What the process raised."""
    text, advice = foreign.printable(str(found["error"])), foreign.printable(str(found.get("advice", "")))
    kinds: dict[int, type[HarnessError]] = {Exit.USAGE: UsageError, Exit.ENVIRONMENT: MachineError}
    kind = next((kind for code, kind in kinds.items() if code == found.get("code")), None)
    return kind(text, advice) if kind else AnswerError(text)
