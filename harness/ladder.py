"""The ladder of a user's training step: what `harness ladder` measures, rung by rung.

Who makes an op of such a step stands in the entry point group `harness.ladders`: a module or a package with

- PREFIX, with which the names of its ops begin, and PAGES, the module of what reports say of them;
- survey(request): what is known of the step once it was run, with `warnings`, a list of sentences; it is called in a
  process that may die;
- plugin(answer): the text of a plug-in that declares the op; it runs no code of the user where it is loaded;
- definition(answer): fields of the scenario: title, op, shape, dtypes, baseline, shows, source, tags.

The first entry point is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import discover
from harness.errors import MachineError, UsageError
from harness.judge import asking
from harness.model import Timing
from harness.ops import Catalogue
from harness.scenario import Definition, Plan, Selection, Setting, plan

GROUP = "harness.ladders"
FILE = "ladder.py"
"""The plug-in in the folder of a run."""
_TIMING = Timing(precision=0.005, max_time=10.0, timeout=1800.0)
_SECONDS = 900.0
"""The longest that a survey may take: it downloads nothing, but may build a large model."""


@dataclass(frozen=True, slots=True)
class Laddered:
    """A step that is ready to be measured.

    said: what is to be told before, a few lines. warned: sentences on what a user may want to change first. text: of
    its plug-in. worlds: numbers of devices, each with settings
    of its own.
    """

    name: str
    text: str
    said: str
    answer: Mapping[str, Any]
    worlds: tuple[int, ...] = (1,)
    warned: tuple[str, ...] = ()

    def planned(self, plugins: Sequence[Path], selection: Selection) -> tuple[Plan, Catalogue]:
        """The plan of its rungs, and the catalogue with its op. plugins: files; the first one has its text."""
        catalogue = Catalogue(plugins)
        fields = dict(_module().definition(self.answer))
        fields["variants"] = tuple(catalogue[fields["op"]].variants)  # with those that other plug-ins add
        shape = tuple(fields.pop("shape"))
        settings = tuple(Setting(shape, world=world) for world in self.worlds)
        one = Definition(name=self.name, file=plugins[0], settings=settings, timing=_TIMING, **fields)
        return plan([one], catalogue, selection), catalogue


def laddered(source: str, device: str, size: int, worlds: Sequence[int] = (1,)) -> Laddered:
    """The op of a step, after one step of it in another process.

    source: a file, or a library's model. size: of a library's batch. worlds: numbers of devices that it will be
    measured on. Raises UsageError for a step that doesn't run.
    """
    module = _module()
    request = {
        "entry": _entry().name,
        "source": source,
        "device": device,
        "size": size,
        "prefix": module.PREFIX,
        "world": max(worlds),
    }
    try:
        answer = asking.ask("ladder", request, _SECONDS)
    except asking.AnswerError as lost:
        raise UsageError(f"{source}: the step can't be run: {lost}", "correct it, and try it first alone") from None
    warned = tuple(answer.get("warnings", ()))
    return Laddered(answer["name"], module.plugin(answer), answer["patched"], answer, tuple(worlds), warned)


def _module() -> ModuleType:
    found: ModuleType = discover.load(_entry())
    return found


def _entry() -> Any:
    entries = discover.entry_points(GROUP)
    if not entries:
        raise MachineError("nothing here makes an op of a training step", "install the harness with its collection")
    return entries[0]
