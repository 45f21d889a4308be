"""Only the command decides with which exit code its process ends, whatever code of others does.

A plug-in, or a library that it imports, may call `os._exit(0)`: in a thread, or when Python ends, to leave out what
takes long then. A gate that fails would end with 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from harness.cli import streams
from harness.errors import Exit

_TOLD = (
    "error: code that isn't of the harness has ended this process by os._exit, so there is no result\n"
    "  remove the call from the plug-in, or from the library that it imports"
)


@contextmanager
def decided() -> Iterator[None]:
    """What ends this process by `os._exit`, in the context or after it, doesn't change its exit code.

    Inside of the context it ends with the exit code of wrong usage, and says so. Processes that were forked from this
    one end as they want.
    """
    own, leave = os.getpid(), os._exit
    decision: list[int] = []

    def guarded(status: int) -> None:
        if os.getpid() != own:
            leave(status)
        if not decision:
            with suppress(Exception):
                streams.tell(_TOLD)
        leave(decision[0] if decision else Exit.USAGE)

    os._exit = guarded  # type: ignore[assignment]
    try:
        yield
    except SystemExit as ended:
        code = ended.code
        decision.append(code if isinstance(code, int) else 0 if code is None else 1)
        raise
    except BaseException:
        decision.append(1)  # as Python ends
        raise
    decision.append(0)
