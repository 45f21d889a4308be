"""Cases that another code stored or sent, as the ops that are loaded now know them.

An op may have learned a choice, or a size with a default, since a case was stored. What the case lacks is at its
default, so it is the same case. What the case has at a default of then may be another case today: if the default has
changed since, today's id says the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.expressions import ExpressionError, evaluate
from harness.model import Case, Run
from harness.model.case import SCALAR, USUAL, Value, written
from harness.ops.catalogue import LOADED, Catalogue
from harness.ops.sheet import Op

Ops = Mapping[str, Op]


def load(folder: Path) -> Run:
    """The run in a folder, with the ids that its cases have today. Raises what `store.load` raises.

    The ops are the loaded ops; if none is loaded, the ops of the entry points.
    """
    from harness import store  # it loads pydantic, which a listing must not

    return recognised_run(store.load(folder), LOADED or Catalogue())


def recognised_run(run: Run, ops: Ops = LOADED) -> Run:
    """The run with the ids that its cases have today; the run itself where no id changes.

    The hash of its plan is dropped where an id changes: it is over the ids of then.
    """
    cases = {m.case.id: recognised(m.case, ops) for m in run.measurements}
    named = {key for scenario in run.header.scenarios for key in scenario.cases} | {a.case for a in run.attachments}
    today = {key: translated(key, ops) for key in named} | {key: case.id for key, case in cases.items()}
    if all(key == now for key, now in today.items()):
        return run
    scenarios = (replace(s, cases=tuple(today[key] for key in s.cases)) for s in run.header.scenarios)
    return replace(
        run,
        header=replace(run.header, scenarios=tuple(scenarios), plan=""),
        measurements=tuple(replace(m, case=cases[m.case.id]) for m in run.measurements),
        attachments=tuple(replace(a, case=today[a.case]) for a in run.attachments),
    )


def recognised(case: Case, ops: Ops = LOADED) -> Case:
    """The case as its op knows it now: with all sizes and choices of the op, and what of them is at its default.

    A case whose op isn't loaded, or that can't be one of the op, stays as it is.
    """
    op = ops.get(case.op)
    if op is None or {*dict(case.shape), *dict(case.choices)} - {*op.symbols, *op.choices, *case.usual}:
        return case
    given = dict(case.choices)
    choices = tuple((name, given.get(name, choice.usual)) for name, choice in op.choices.items())
    sizes = {name: size for name, size in case.shape if name in op.symbols}
    for _ in op.defaults:  # a default may be made of another one
        sizes |= {name: size for name, size in _defaults(op, sizes, case.world) if name not in sizes}
    if sizes.keys() != op.symbols.keys():
        return case
    shape = tuple((name, sizes[name]) for name in op.symbols)
    # Beside a symbol N1, 'N11' could be N = 11, or N1 = 1 with N left out.
    certain = not any(symbol[-1].isdigit() for symbol in op.symbols)
    usual = [name for name, size in _defaults(op, sizes, case.world) if certain and sizes[name] == size]
    usual += [name for name, value in choices if written(value) == written(op.choices[name].usual)]
    return replace(case, shape=shape, choices=choices, usual=tuple(usual))


def translated(key: str, ops: Ops = LOADED) -> str:
    """Today's id of the case that an id names, whole or not; the id itself if no op that is loaded has the case."""
    case = named(key, ops)
    return case.id if case else key


def named(key: str, ops: Ops = LOADED) -> Case | None:
    """The case that an id names, whole or not; None if no op that is loaded has it. Its device isn't told by an id."""
    name, variant, dtype, shape, *rest = (*key.split("/"), "", "", "")[: max(4, key.count("/") + 1)]
    op = ops.get(name)
    if op is None:
        return None
    world = next((int(part[6:]) for part in rest if part.startswith("world=") and part[6:].isdigit()), 1)
    others = [part for part in rest if part and part != "hot" and not part.startswith("world=")]
    case = Case(
        name,
        variant,
        dtype,
        tuple(_sizes(op, shape)),
        tuple(_choices(op, ",".join(others))),
        world,
        cache="hot" if "hot" in rest else "cold",
    )
    found = recognised(case, ops)
    return found if found is not case and key in (found.id, found.whole_id, case.whole_id) else None


def _defaults(op: Op, sizes: Mapping[str, int], world: int) -> Iterator[tuple[str, int]]:
    """Each default of a size that can be computed from these sizes."""
    for name, text in op.defaults.items():
        with suppress(ExpressionError):
            yield name, evaluate(text, {**sizes, "world": world})


def _sizes(op: Op, text: str) -> Iterator[tuple[str, int]]:
    """The sizes in the part of an id that is the shape: 'N96-C64'."""
    if text in (SCALAR, USUAL):
        return
    for part in text.split("-"):
        fitting = [s for s in op.symbols if part.startswith(s) and part[len(s) :].isdigit()]
        if fitting:
            symbol = max(fitting, key=len)
            yield symbol, int(part[len(symbol) :])


def _choices(op: Op, text: str) -> Iterator[tuple[str, Value]]:
    """The choices in the part of an id that has choices: 'layout=nhwc,p=0.1'."""
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name in op.choices:
            known = {written(one): one for one in op.choices[name].values}
            with suppress(ValueError):
                yield name, known[value] if value in known else float(value)
