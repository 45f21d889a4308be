"""How a candidate is judged: what it is, whether it is right, what torch sees of it, how long it takes."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import devices, paths, runner, scenario, store
from harness.errors import HarnessError, MachineError, UsageError, nearest
from harness.judge import asking, declared, isolated, sources, verdict
from harness.judge.forms import form_of
from harness.judge.forms.ops import other_sizes
from harness.judge.records import CANDIDATE, Asked, Calls, Judgement, Sheet
from harness.judge.sources import Source
from harness.model import FAILED, Case, Job, Measurement, Run
from harness.ops import Catalogue, Op
from harness.processes import scratch
from harness.processes.supervisor import Workers
from harness.runner import Observer
from harness.scenario import Definition, Setting

_SETTINGS = 3  # of a bundled op, at which a candidate is timed
_UNSEEN = 4  # sizes that nobody knew
_PROPOSED = 10


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The plug-ins that declare the candidate, its op, and its cases: to be timed, and to be checked alone."""

    sheet: Sheet
    plugins: tuple[Path, ...]
    op: Op
    timed: tuple[Job, ...]
    checked: tuple[tuple[str, Job], ...]


def judge(asked: Asked, command: Sequence[str], observer: Observer) -> Judgement:
    """Judge a candidate. command: the command line, program first.

    Raises UsageError for a request that can't be carried out, InputError for a manifest, and MachineError where nothing
    can be measured. Whatever the candidate does ends in a judgement.
    """
    with scratch.folder("judge") as home:
        observer.note("what the candidate is, and its reference")
        ruling = verdict.Ruling(asked, _sha256(asked.candidate), tuple(command))
        try:
            sheet = _settled(asked, home)
        except asking.AnswerError as lost:
            return ruling.ended("crashed", f"loading it failed: {lost}")
        prepared = _prepared(asked, sheet, home, observer)
        ruling = replace(ruling, sheet=prepared.sheet, machine=devices.kinds()[asked.device].machine().name)
        checked = _check(prepared, asked.device, observer)
        if found := ruling.of_checks(checked):
            return found
        calls = None if asked.isolated else _calls(prepared, checked, observer)
        run = _run(prepared, asked.device, home / "run", command, observer)
        if sheet.form != "ops" and verdict.ceiling_is_wrong(run):
            sheet = replace(prepared.sheet, is_counted=False, notes=(*prepared.sheet.notes, verdict.UNCOUNTED))
            prepared = _prepared(asked, sheet, home, observer)
            ruling = replace(ruling, sheet=sheet)
            run = _run(prepared, asked.device, home / "again", command, observer)
        return ruling.of_run(run, checked, calls)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


# ---- What the candidate is.


def _settled(asked: Asked, home: Path) -> Sheet:
    """The sheet of a candidate. Code of its reference runs for it, in a process that may die."""
    source = Source(asked.candidate) if asked.isolated else sources.read(asked.candidate)
    if asked.isolated:
        asked = replace(asked, manifest=_manifest(asked))
        code = isolated.code(asked.manifest, asked.candidate)
        (home / f"{isolated.CODE}{code.suffix}").write_bytes(code.read_bytes())
    sheet = form_of(asked, source).sheet(asked, source)
    if asked.isolated and devices.kinds()[asked.device].on_host:
        raise MachineError(
            f"--isolated launches kernels, and the device '{asked.device}' runs none",
            "judge it where a GPU is; 'harness env' says what this machine has",
        )
    try:
        answer = asking.ask("survey", {"sheet": store.dump(sheet)}, asked.timing.timeout)
    except asking.AnswerError as lost:
        if sheet.reference in ("", sheet.candidate):
            raise
        raise UsageError(f"{sheet.reference}: the reference can't be run: {lost}", "mend the reference") from None
    found = store.parse(Sheet, answer["sheet"])
    return replace(found, notes=(*found.notes, *_passed_over(asked.device)))


def _passed_over(kind: str) -> Iterator[str]:
    """A sentence on each kind of device that is preferred to this one and can't be used, as a GPU before a CPU."""
    for name, device in devices.kinds().items():
        if name == kind:
            return
        if why := device.missing():
            yield f"It ran on the device {kind}; {name} can't be used here: {why}."


def _manifest(asked: Asked) -> Mapping[str, Any]:
    """The manifest of a candidate: a file of JSON, or what the function `export` of a file of Python gives."""
    if asked.candidate.suffix != ".py":
        return isolated.read(asked.candidate)
    # It exports without a device, in a process that is gone before anything is timed.
    answer = asking.ask(
        "export", {"file": str(asked.candidate.resolve())}, asked.timing.timeout, variables={"CUDA_VISIBLE_DEVICES": ""}
    )
    return isolated.parsed(str(answer["manifest"]), f"{asked.candidate}: export()")


def _prepared(asked: Asked, sheet: Sheet, home: Path, observer: Observer) -> _Prepared:
    """The candidate's plug-in, with the jobs to check and to time."""
    plugins = (*asked.plugins, declared.write(sheet, home))
    op = Catalogue(plugins)[sheet.op]
    found = _Prepared(sheet, plugins, op, (), ())
    if sheet.form != "ops":
        timed = [_case(op, one.sizes, sheet.dtype, asked.device) for one in sheet.timed]
        others = (("tested", sheet.tested), ("unseen", sheet.unseen))
        checked = [(kind, _case(op, one.sizes, sheet.dtype, asked.device)) for kind, part in others for one in part]
    else:
        settings = _settings(asked, op)
        timed = [_case(op, setting.values, dtype, asked.device) for dtype, setting in settings]
        checked = [("unseen", case) for case in _other_cases(asked, found, timed, observer)]
    if not sheet.tested:
        # First of all, so that a candidate that is wrong costs no time of torch.
        checked.insert(0, ("given", timed[0]))
    return replace(
        found,
        timed=tuple(Job(case, asked.timing) for case in dict.fromkeys(timed)),
        checked=tuple((kind, Job(case, asked.timing)) for kind, case in checked),
    )


def _case(op: Op, values: Mapping[str, Any], dtype: str, device: str) -> Case:
    """The candidate's case at these sizes and choices; a choice that isn't given is at its default."""
    shape = tuple((symbol, int(values[symbol])) for symbol in op.symbols)
    choices = tuple((name, values.get(name, choice.usual)) for name, choice in op.choices.items())
    return Case(op.name, CANDIDATE, dtype, shape, choices, device=device)


def _settings(asked: Asked, op: Op) -> list[tuple[str, Setting]]:
    """Dtypes and sizes at which a candidate for an op of ours is timed: given ones, or some of the op's scenario."""
    definitions = _definitions(op, asked)
    dtypes = asked.dtypes or tuple(dict.fromkeys(dtype for one in definitions for dtype in one.dtypes)) or op.dtypes
    for dtype in dtypes:
        if dtype not in op.dtypes:
            raise UsageError(f"--dtype: op '{op.name}' has no dtype '{dtype}'", nearest(dtype, op.dtypes))
    if asked.sizes:
        settings = [_setting(op, sizes) for sizes in asked.sizes]
    else:
        known = list(dict.fromkeys(setting for one in definitions for setting in one.settings if setting.world == 1))
        settings = random.Random(asked.seed).sample(known, min(_SETTINGS, len(known)))
    if not settings:
        example = ",".join(f"{symbol}=1024" for symbol in op.symbols)
        raise UsageError(f"no bundled scenario has sizes for op '{op.name}'", f"name some: --sizes {example}")
    return [(dtype, setting) for dtype in dtypes for setting in settings]


def _definitions(op: Op, asked: Asked) -> tuple[Definition, ...]:
    """The bundled scenario that has the op's name; else all bundled ones of the op."""
    files = sorted(paths.data("scenarios").glob("*.yaml"))
    line = re.compile(rf"^op: {re.escape(op.name)}$", re.MULTILINE)
    named = [file for file in files if file.stem == op.name]
    found = named or [file for file in files if line.search(file.read_text(encoding="utf-8"))]
    return tuple(one for one in scenario.load(found, Catalogue(asked.plugins)) if one.op == op.name)


def _setting(op: Op, sizes: Mapping[str, int]) -> Setting:
    """Sizes as they were given, and the op's defaults for the rest."""
    from harness.expressions import ExpressionError, evaluate

    if unknown := next((name for name in sizes if name not in op.symbols), None):
        raise UsageError(f"--sizes: op '{op.name}' has no size '{unknown}'", nearest(unknown, op.symbols))
    found = dict(sizes)
    for symbol, text in op.defaults.items():
        if symbol in found:
            continue
        try:
            found[symbol] = evaluate(text, found)
        except ExpressionError as error:
            raise UsageError(f"--sizes: '{symbol}' of op '{op.name}' isn't known: {error}", "name it, too") from None
    if missing := next((symbol for symbol in op.symbols if symbol not in found), None):
        raise UsageError(f"--sizes: '{missing}' of op '{op.name}' is missing", f"it is: {op.symbols[missing]}")
    choices = tuple((name, choice.usual) for name, choice in op.choices.items())
    return Setting(tuple((symbol, found[symbol]) for symbol in op.symbols), choices)


def _other_cases(asked: Asked, found: _Prepared, timed: Sequence[Case], observer: Observer) -> list[Case]:
    """Cases of other sizes, which torch's baseline of the op does right."""
    op, rng = found.op, random.Random(asked.seed)
    baseline = next((v.name for v in op.variants.values() if v.role == "baseline" and v.runs_on(asked.device)), "")
    if not baseline:
        return []
    proposed: dict[Case, None] = {}
    drawn = [other_sizes(op, case.symbols, rng) for case in timed]
    for number in range(_PROPOSED if any(case.shape for case in timed) else 0):
        like = timed[number % len(timed)]
        sizes = next(drawn[number % len(timed)])
        proposed[replace(like, shape=tuple(sizes.items()))] = None
    observer.note("sizes that the candidate hasn't seen")
    jobs = [Job(replace(case, variant=baseline), asked.timing) for case in proposed if case not in timed]
    right: list[Case] = []
    with Workers(asked.device, found.plugins) as workers:
        for job in jobs:
            if len(right) < _UNSEEN and workers.measure(job, timed=False).status == "ok":
                right.append(replace(job.case, variant=CANDIDATE))
    return right


# ---- What it does.


def _check(prepared: _Prepared, device: str, observer: Observer) -> list[tuple[str, Measurement]]:
    """Each checked case with its outcome, up to the first one that failed: it may have taken minutes."""
    found: list[tuple[str, Measurement]] = []
    observer.planned(len(prepared.checked), 0)
    with Workers(device, prepared.plugins) as workers:
        for kind, job in prepared.checked:
            observer.started(job, 0)
            found.append((kind, workers.measure(job, timed=False)))
            observer.finished(found[-1][1])
            status = found[-1][1].status
            fails = status in FAILED and not (kind == "unseen" and verdict.declines(found[-1][1]))
            if fails or verdict.is_out(kind, status):
                break
    return found


def _calls(prepared: _Prepared, checked: Sequence[tuple[str, Measurement]], observer: Observer) -> Calls | None:
    """What torch's dispatcher sees of the smallest case that was right; None if that isn't known."""
    observer.note("which calls of torch it makes")
    right = [one.case for _, one in checked if one.status == "ok"]
    case = min(right, key=lambda one: prepared.op.work_of(one.values, one.dtype).moved, default=prepared.timed[0].case)
    job = replace(prepared.timed[0], case=case)
    request = {"plugins": [str(file.resolve()) for file in prepared.plugins], "job": store.dump(job)}
    try:
        return store.parse(Calls, json.dumps(asking.ask("calls", request, job.timing.timeout)))
    except (asking.AnswerError, HarnessError, ValueError):
        return None


def _run(prepared: _Prepared, device: str, folder: Path, command: Sequence[str], observer: Observer) -> Run:
    """The timed cases of the candidate and of torch's baselines."""
    op = prepared.op
    names = [name for name, v in op.variants.items() if v.role == "baseline" and v.runs_on(device)]
    # All baselines come first: what the candidate does to its process mustn't make torch slower.
    jobs = [
        replace(job, case=replace(job.case, variant=name)) for name in (*names, CANDIDATE) for job in prepared.timed
    ]
    plan = scenario.Plan((), tuple(jobs), {op.name: op})
    return runner.run(
        plan, name="judge", folder=folder, device=device, plugins=prepared.plugins, command=tuple(command),
        observer=observer,
    )  # fmt: skip
