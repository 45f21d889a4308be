"""The process that starts ranks as torchrun does: `_torchrun TRACE RANKS WAIT ACTIVE` and the arguments of torchrun.

Each rank runs the user's program by `_script`, which takes the same first four arguments. torchrun's own parser says
where its options end and where the program begins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from harness.processes import python, start

_OURS = 4


def main(arguments: Sequence[str]) -> int:
    """Start the ranks, wait for them, and give the exit code: 1 where a rank failed, which torchrun tells of."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    told, words = arguments[:_OURS], arguments[_OURS:]
    parsed = run.parse_args(list(words))
    if parsed.no_python:
        print("the program of torchrun --no-python can't be recorded: name a script of Python's", file=sys.stderr)  # noqa: T201
        return 2
    program = [*(["-m"] if parsed.module else []), parsed.training_script, *parsed.training_script_args]
    parsed.module = parsed.run_path = False
    parsed.training_script = start.__file__
    parsed.training_script_args = ["harness.profile._script", *told, *program]
    # `start` has taken this variable out of the environment, and each rank begins with `start` again.
    os.environ[start.VARIABLE] = python.environment()[start.VARIABLE]
    try:
        run.run(parsed)
    except ChildFailedError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
