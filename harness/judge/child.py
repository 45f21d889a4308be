"""A process in which code of a candidate, or of its reference, runs: `harness.judge.child ACTION REQUEST ANSWER`.

Both files are JSON. It may die or never end: that costs only its answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, brief, described

Answer = dict[str, Any]


def _survey(request: Answer) -> Answer:
    """The sheet of a request, with what had to be run for it."""
    from harness import store
    from harness.judge.forms import all_forms
    from harness.judge.records import Sheet

    sheet = store.parse(Sheet, request["sheet"])
    return {"sheet": store.dump(all_forms()[sheet.form].surveyed(sheet))}


def _calls(request: Answer) -> Answer:
    """What torch's dispatcher sees of a call of a case."""
    from harness import devices, store
    from harness.judge import calls
    from harness.model import Job
    from harness.ops import Catalogue
    from harness.session import Session

    job = store.parse(Job, request["job"])
    op = Catalogue(tuple(map(Path, request["plugins"])))[job.case.op]
    device = devices.kinds()[job.case.device]
    # A single call is looked at, so no sets of buffers are made that outgrow the cache.
    with Session(replace(job.case, cache="hot"), op, device) as session:
        session.prepare()
        call = session.rotation().calls[0]
        names = [tensor.name for tensor in op.outputs] or [tensor.name for tensor in op.inputs if tensor.inplace]

        def outputs(returned: object) -> list[Any]:
            from harness.judge import data

            return data.tensors(returned if session.variant.returns else [getattr(call.tensors, n) for n in names])

        return asdict(calls.seen(call, outputs))


def _export(request: Answer) -> Answer:
    """The manifest that a file's function `export` gives."""
    from harness.judge import loading

    return {"manifest": json.dumps(loading.load(request["file"], loading.CANDIDATE).export())}


def _ladder(request: Answer) -> Answer:
    """What there is to know of a user's training step. Whoever makes an op of it runs the step."""
    from harness import devices, discover

    entry = next(one for one in discover.entry_points("harness.ladders") if one.name == request["entry"])
    place = devices.kinds()[request["device"]].torch_device.type
    answer: Answer = discover.load(entry).survey({**request, "device": place})
    return answer


ACTIONS: dict[str, Callable[[Answer], Answer]] = {
    "survey": _survey, "calls": _calls, "export": _export, "ladder": _ladder
}  # fmt: skip
"""What a process may be asked for."""


def main(arguments: Sequence[str]) -> int:
    """Answer a request."""
    action, request, answer = arguments
    try:
        found = ACTIONS[action](json.loads(Path(request).read_text(encoding="utf-8")))
    except HarnessError as error:
        found = {"error": error.message, "advice": error.advice, "code": error.exit_code}
    except BaseException as error:
        found = {"error": brief(described(error)), "advice": "", "code": 0}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
