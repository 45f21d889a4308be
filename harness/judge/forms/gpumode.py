"""GPU MODE's form: custom_kernel(data), ref_kernel(data), generate_input(**arguments, seed), and a task.yml with sizes.

Tensors of the data that the reference never reads are memory for outputs: a set of buffers has its own, with wrong
values in it. check_implementation(data, output) is a part of what is right, where the reference's file has it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import foreign
from harness.errors import UsageError, brief, described
from harness.judge import data, loading, sizes
from harness.judge.forms import _op, _reference, _survey
from harness.judge.records import Asked, Sheet, Sized
from harness.judge.sources import Source, read
from harness.ops import Op

SUMMARY = "GPU MODE's: a function custom_kernel; ref_kernel and generate_input there, in reference.py or --reference"
_NEEDED = ("ref_kernel", "generate_input")
_TASK = "task.yml"
_MOST_BYTES = 1 << 20


def recognises(asked: Asked, source: Source) -> bool:
    """Whether the file defines custom_kernel, or is a manifest for a reference of this form."""
    defined = asked.isolated or (asked.function or "custom_kernel") in source.names
    return not asked.op and defined and bool(_home(asked, source))


def _home(asked: Asked, source: Source) -> Source | None:
    """The file with the reference: the one that is named, the candidate's own, or reference.py beside it."""
    beside = source.file.with_name("reference.py")
    files = [read(asked.reference)] if asked.reference else [source, *map(read, filter(Path.is_file, [beside]))]
    return next((found for found in files if {*_NEEDED} <= found.names), None)


def sheet(asked: Asked, source: Source) -> Sheet:
    """What is known without running anything: sizes are those of --sizes, else those of task.yml."""
    home = _home(asked, source)
    assert home
    task = _task(home.file.with_name(_TASK))
    timed = asked.sizes or task.get("benchmarks") or task.get("tests") or ()
    tested = task.get("tests", ()) if timed is not task.get("tests") else ()
    parameters = [name for name in home.functions["generate_input"] if name != "seed"]
    if not timed and parameters:
        raise UsageError(
            f"{home.file}: no sizes are known for generate_input({', '.join(parameters)})",
            f"name them, as in --sizes {','.join(f'{name}=1024' for name in parameters)}; or put a {_TASK} beside it",
        )
    if asked.dtypes:
        raise UsageError("--dtype can't be given: generate_input of this form makes the inputs", "leave it out")
    cases = _cases(timed or ({},), tested)
    files = [one["source"] for one in task.get("files", ()) if isinstance(one.get("source"), str)]
    folders = {str((home.file.parent / file).resolve().parent) for file in files}
    return Sheet(
        form="gpumode",
        candidate=str(source.file.resolve()),
        reference=str(home.file.resolve()),
        function=asked.function or "custom_kernel",
        device=asked.device,
        dtype="float32",
        seed=asked.seed,
        op=_reference.NAME,
        folders=tuple(sorted({str(home.file.resolve().parent), *folders})),
        options={"manifest": dict(asked.manifest), "seeded": "seed" in home.functions["generate_input"]},
        timed=cases[0],
        tested=cases[1],
        notes=(_reference.IN_ONE_FILE,) if home.file == source.file else (),
    )


def surveyed(sheet: Sheet) -> Sheet:
    """The sheet with the tensors of each case."""
    return _survey.surveyed(sheet, reference(sheet))


def op(sheet: Sheet) -> Op:
    """The op of the reference."""
    return _op.op(sheet, reference, candidate)


def reference(sheet: Sheet) -> _reference.Reference:
    """The functions of the reference's file."""
    return _Reference(sheet)


def candidate(sheet: Sheet, reference: _reference.Reference) -> _reference.Function:  # noqa: ARG001 - as every form has it
    """The function custom_kernel."""
    module = loading.load(sheet.candidate, loading.CANDIDATE, sheet.folders)
    found: _reference.Function = getattr(module, sheet.function)
    return found


def _task(file: Path) -> dict[str, Any]:
    """What a task.yml says; nothing where there is none. Raises UsageError for one that can't be read."""
    import yaml

    if not file.is_file():
        return {}
    try:
        found = yaml.safe_load(foreign.read(file, _MOST_BYTES))
    except (OSError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{file}: can't be read: {brief(str(error))}", "mend it, or name sizes by --sizes") from None
    allowed = isinstance(found, dict) and all(
        isinstance(found.get(part, []), list) and all(isinstance(entry, dict) for entry in found.get(part, []))
        for part in ("tests", "benchmarks", "files")
    )
    if not allowed:
        raise UsageError(f"{file}: tests, benchmarks and files must be lists of mappings", "see a task of GPU MODE")
    return {part: tuple(found.get(part, ())) for part in ("tests", "benchmarks", "files")}


def _cases(*lists: Sequence[Mapping[str, Any]]) -> list[tuple[Sized, ...]]:
    """The cases of lists of arguments. Arguments that aren't sizes in every case become names in a case's id."""
    every = [{name: value for name, value in one.items() if name != "seed"} for part in lists for one in part]
    whole = {name for name in every[0] if all(_is_size(one.get(name)) for one in every)}
    found, seen = [], set[tuple[Any, ...]]()
    for part in lists:
        made = []
        for one in part:
            arguments = {name: value for name, value in one.items() if name != "seed"}
            if arguments.keys() != every[0].keys():
                message = f"cases with other arguments than {', '.join(every[0])} can't be judged together"
                raise UsageError(message, "give all cases of task.yml and of --sizes the same arguments")
            named = {_name(n): value if n in whole else _written(value) for n, value in arguments.items()}
            if tuple(named.values()) not in seen:
                seen.add(tuple(named.values()))
                made.append(Sized(named, arguments))
        found.append(tuple(made))
    return found


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _name(argument: str) -> str:
    return f"{argument}_" if argument == "world" else argument


def _written(value: object) -> str:
    return re.sub(r"[^\w.+:-]", "_", str(value)) or "_"


class _Reference:
    """The functions of a reference's file."""

    weights = 0

    def __init__(self, sheet: Sheet) -> None:
        self._seeded = sheet.options["seeded"]
        self._place = _reference.torch_device(sheet)
        module = loading.load(sheet.reference, loading.REFERENCE, sheet.folders)
        self._generate: Callable[..., Any] = module.generate_input
        self.call: Callable[[Any], Any] = module.ref_kernel
        self._check: Callable[..., Any] | None = getattr(module, "check_implementation", None)

    @property
    def decides(self) -> bool:
        return self._check is not None

    def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
        """What generate_input gives for a seed."""
        _reference.seed_all(self._place, seed)
        return self._generate(**arguments, **({"seed": seed} if self._seeded else {}))

    def precisely(self, values: Any) -> Any:
        """The outputs for inputs in float64."""
        return self.call(data.mapped(values, lambda one: one.double() if one.is_floating_point() else one))

    def complaint(self, values: Any, outputs: list[Any]) -> str | None:
        """What check_implementation finds wrong; None where there is none."""
        if self._check is None:
            return None
        try:
            found = self._check(values, outputs[0] if len(outputs) == 1 else tuple(outputs))
        except Exception as error:
            return f"check_implementation fails: {brief(described(error))}"
        # Some give whether it passed and why not, some only one of the two.
        passed, said = found if isinstance(found, tuple) else (found in (True, "", None), found)
        return None if passed else f"check_implementation: {brief(str(said))}"

    def vary(self, arguments: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]:
        """The arguments with other sizes."""
        named = {name: value for name, value in arguments.items() if _is_size(value)}
        if named:
            for made in sizes.drawn(named, rng):
                yield {**arguments, **made}
