"""`harness tune`: search the fastest plans of a kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import paths
from harness.cli import completion, options, values
from harness.cli.group import alone
from harness.cli.options import Device, MaxTime, Ops, Precision
from harness.errors import CompileError, Exit, HarnessError, MachineError, UnwritableError, UsageError, nearest

if TYPE_CHECKING:
    from harness.model import Case, Timing, Value
    from harness.ops import Op
    from harness.scenario import Setting
    from harness.tune import Ahead, ToTune, Tuned

app = alone()
EXAMPLES = (
    "\b\nExamples:\n"
    "  harness tune layer_norm --dry-run\n"
    "  harness tune layer_norm --sizes M=4096,N=768 --dtype bfloat16\n"
    "  harness tune softmax --scenario models --budget 30m\n"
    "  harness tune --scenario models --budget 1h    all of its ops that have plans\n"
    "  harness tune nchw_to_nhwc --sizes N=33,C=64,H=56,W=56,direction=to_nchw\n"
    "  harness tune mine --ops mine.py --device cpu\n"
    "  harness tune layer_norm --arch sm_100 --dry-run    for a GPU that isn't here\n"
    "\n\b\nA plan is a value of each parameter of the kernel, such as threads.\n"
    "The table says which plan is taken at which size; the next call uses it.\n"
    "The same command goes on with a search that was interrupted."
)
_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZES = re.compile(r"\w+=[\w.+-]+(,\w+=[\w.+-]+)*")
_SIZE = re.compile(r"[0-9]{1,19}")
_ARCH = re.compile(r"(?:(?:sm|compute)_?)?([0-9]{1,2})\.?([0-9])[af]?")


def _budget(text: str) -> float:
    found = _BUDGET.fullmatch(text)
    if not found or not float(found[1]) > 0:
        raise typer.BadParameter(f"'{text}' isn't a time; write 90s, 10m or 1.5h.")
    return float(found[1]) * _SECONDS[found[2]]


@app.command("tune", epilog=EXAMPLES, short_help="Search the fastest plans of a kernel, and keep them.")
def command(
    op: Annotated[
        str | None,
        typer.Argument(
            metavar="OP",
            help="The op whose plans are searched. Default: all ops of --scenario that have plans.",
            autocompletion=completion.ops,
        ),
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="NAME", help="The variant whose plans are searched, if several have plans.")
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Tune for the sizes of these scenarios. Default: the op's own."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--sizes", metavar="SIZES", help="Tune for these sizes and choices instead, e.g. M=4096,N=768."),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(metavar="NAMES", help="Only these dtypes.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(parser=_budget, metavar="TIME", help="Stop after 90s, 10m or 1h; the same command goes on."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the plans and what the compiler says of them; time nothing.")
    ] = False,
    arch: Annotated[
        str | None,
        typer.Option(metavar="SM", help="With --dry-run: for this architecture, e.g. sm_90, not for this GPU."),
    ] = None,
    device: Device = None,
    precision: Precision = None,
    max_time: MaxTime = None,
    ops: Ops = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the table there. Default: the user's cache folder.")
    ] = None,
) -> None:
    """Search the fastest plans of a kernel at some sizes, and keep them in a table.

    Plans that spill more than the rule's, or don't fit, are dropped by what the compiler says. The others are checked
    as every case is, and timed in rounds, each with fewer plans and more time for each.
    """
    from harness import cuda, tune
    from harness.cuda.assumed import known

    tune.compile_anew()
    if arch and not dry_run:
        raise UsageError("--arch is for --dry-run: only this GPU can be timed", "add --dry-run, or leave --arch out")
    if output and output.suffix != ".json":
        raise UsageError(f"--output {output}: a table is a .json file", "such as plans/nvidia_h200.json")
    if not op and (variant or sizes or not scenario):
        raise UsageError("no op is named", "name one, or --scenario NAME alone for all of its ops that have plans")
    timing = options.timing(precision, max_time)
    kind, plugins, dtypes = "cuda" if arch else _device(device), tuple(ops or ()), values.names(dtype)
    if op:
        asked = [_asked(op, variant, kind, plugins, scenario, sizes, dtypes)]
    else:
        asked = _every(kind, plugins, scenario or (), dtypes)
    wanted = [replace(each, timing=timing, output=output) for each in asked]
    if dry_run:
        with cuda.assuming(known(_spelt(arch))) if arch else nullcontext():
            _list(wanted, timing)
    else:
        _search(wanted, budget or float("inf"))


def _list(wanted: Sequence[ToTune], timing: Timing) -> None:
    """Tell the plans at each case, and how long the search takes."""
    from harness import tune
    from harness.cli import tune_told
    from harness.cli.console import open_console
    from harness.cli.progress import follow

    by_op = []
    failed: HarnessError | None = None
    for each in wanted:
        try:
            with follow(open_console(err=True)) as observer:
                found = tune.listed(each, observer)
        except (CompileError, UsageError) as error:
            if len(wanted) == 1:
                raise
            typer.echo(f"{each.op}: {error.message}", err=True)
            failed = error
            continue
        typer.echo("\n".join(line for one in found for line in (*tune_told.lines(one), "")))
        by_op.append(found)
        try:
            tune.refuse_none(each, (one.candidates for one in found))
        except CompileError as error:
            failed = error
        except UsageError:
            if len(wanted) == 1:
                raise
    typer.echo(tune_told.total(by_op, timing))
    if failed:
        raise failed


def _search(wanted: Sequence[ToTune], seconds: float) -> None:
    """Search op after op, and forget what was measured when all are done: until then the same command goes on."""
    from harness import tune
    from harness.cli import tune_told

    deadline = time.monotonic() + seconds
    ahead = _with_sizes(tune.in_order(wanted))
    done = [each.done for each in ahead]
    failed: HarnessError | None = None
    for place, each in enumerate(ahead):
        if len(ahead) > 1:
            typer.echo(tune_told.begun(each, place + 1, len(ahead)), err=True)
        try:
            found = _searched(each.wanted, deadline)
        except UnwritableError:  # no other op's search could go on either
            raise
        except (CompileError, MachineError, UsageError) as error:
            if len(ahead) == 1:
                raise
            typer.echo(f"{each.wanted.op}: {error.message}", err=True)
            failed = error
            continue
        tune_told.tell(found)
        failed = _failure(found) or failed
        done[place] = each.sizes if found.complete else len(found.entries)
        if not found.complete:
            typer.echo(tune_told.over(ahead, done), err=True)
            raise typer.Exit(Exit.UNDECIDED)
    if failed:
        raise failed
    for one in wanted:
        tune.forget(one)


def _failure(found: Tuned) -> HarnessError | None:
    """What a search couldn't do, so that the command fails in the end. Raises it where the table couldn't be kept."""
    from harness.units import plural

    if found.entries and not found.file:
        raise MachineError(
            "the table couldn't be kept", f"make room in {paths.cache()}; the same command measures nothing again"
        )
    if not found.broken:
        return None
    others = f", nor at {plural(len(found.broken) - 1, 'other size')}" if len(found.broken) > 1 else ""
    return CompileError(
        f"{found.broken[0].id}: the rule's plan doesn't compile{others}",
        "correct the kernel, or the rule; the same command goes on with what is left",
    )


def _with_sizes(every: Sequence[Ahead]) -> Sequence[Ahead]:
    """The searches of ops that have plans at their sizes; all where none has, whose searches say why."""
    found = [each for each in every if each.sizes]
    for each in every if found else ():
        if not each.sizes:
            typer.echo(f"{each.wanted.op}: no plan at these sizes", err=True)
    return found or every


def _searched(wanted: ToTune, deadline: float) -> Tuned:
    """What a search finds until the deadline, of the monotonic clock."""
    from harness import tune
    from harness.cli.console import open_console
    from harness.cli.progress import follow

    try:
        with follow(open_console(err=True)) as observer:
            return tune.tune(replace(wanted, seconds=deadline - time.monotonic()), observer)
    except KeyboardInterrupt:
        typer.echo("interrupted; the same command goes on", err=True)
        raise typer.Exit(130) from None


def _device(device: str | None) -> str:
    from harness import devices

    return devices.choose(device)


def _spelt(arch: str) -> str:
    """An architecture as the compiler spells it, also where 90, 9.0, sm90 or sm_90a is written."""
    found = _ARCH.fullmatch(arch.lower())
    return f"sm_{found[1]}{found[2]}" if found else arch


def _asked(
    name: str,
    wanted: str | None,
    device: str,
    plugins: tuple[Path, ...],
    scenarios: Sequence[str] | None,
    sizes: Sequence[str] | None,
    dtypes: Sequence[str],
) -> ToTune:
    from harness.ops import Catalogue
    from harness.tune import ToTune

    catalogue = Catalogue(plugins)
    if name not in catalogue:
        raise UsageError(f"no op is named '{name}'", nearest(name, catalogue))
    found = catalogue[name]
    variant = _with_plans(found, wanted)
    if not found.variants[variant].runs_on(device):
        kinds = ", ".join(found.variants[variant].devices)
        raise UsageError(
            f"{name}/{variant} doesn't run on '{device}', only on: {kinds}",
            "'harness env' says what a GPU lacks here; --dry-run --arch sm_90 lists the plans without a GPU",
        )
    for dtype in dtypes:
        if dtype not in found.dtypes:
            raise UsageError(f"--dtype: op '{name}' has no dtype '{dtype}'", nearest(dtype, found.dtypes))
    if sizes:
        given = [(dtype, _sized(found, text)) for text in sizes for dtype in dtypes or found.dtypes]
    else:
        given = [pair for pair in _of_scenarios(found, catalogue, scenarios) if not dtypes or pair[0] in dtypes]
    cases = dict.fromkeys(_case(found, variant, dtype, setting, device) for dtype, setting in given)
    return ToTune(name, variant, tuple(cases), device, plugins)


def _every(device: str, plugins: tuple[Path, ...], scenarios: Sequence[str], dtypes: Sequence[str]) -> list[ToTune]:
    """What to search of all ops of scenarios that have plans on a device."""
    from harness import scenario
    from harness.ops import Catalogue

    catalogue = Catalogue(plugins)
    names = dict.fromkeys(one.op for one in scenario.load(scenario.find(list(scenarios)), catalogue))
    found = []
    for op in map(catalogue.__getitem__, names):
        own = [dtype for dtype in dtypes if dtype in op.dtypes]
        if any(variant.tuning and variant.runs_on(device) for variant in op.variants.values()) and (own or not dtypes):
            found.append(_asked(op.name, None, device, plugins, scenarios, None, own))
    if not any(each.cases for each in found):
        raise UsageError(
            f"no op of these scenarios has plans to search on '{device}'",
            "name others, or an op; --dry-run --arch sm_90 lists the plans without a GPU",
        )
    return [each for each in found if each.cases]


def _with_plans(op: Op, wanted: str | None) -> str:
    """The variant to search: the one that is wanted, or else the only one with plans."""
    known = [name for name, variant in op.variants.items() if variant.tuning]
    if wanted and wanted not in op.variants:
        raise UsageError(f"op '{op.name}' has no variant '{wanted}'", nearest(wanted, known or op.variants))
    if not known:
        raise UsageError(
            f"no variant of op '{op.name}' has plans to search",
            "'harness list ops' says which ops have plans; a variant of yours declares its plans by tuning=Tuning(...)",
        )
    if wanted and wanted not in known:
        raise UsageError(
            f"variant '{wanted}' of op '{op.name}' has no plans to search", f"with plans: {', '.join(known)}"
        )
    if not wanted and len(known) > 1:
        raise UsageError(f"several variants of op '{op.name}' have plans", f"add --variant {' or '.join(known)}")
    return wanted or known[0]


def _of_scenarios(op: Op, catalogue: Any, names: Sequence[str] | None) -> list[tuple[str, Setting]]:
    from harness import scenario

    if not names and op.name not in completion.bundled_scenarios():
        example = ",".join(f"{symbol}=1024" for symbol in op.symbols)
        others = [entry.name for entry in scenario.overview(f"op: {op.name}") if op.name in entry.ops]
        known = " or ".join((*others, "FILE"))
        raise UsageError(
            f"no bundled scenario is named '{op.name}'", f"name sizes, --sizes {example}, or --scenario {known}"
        )
    definitions = scenario.load(scenario.find(names or [op.name]), catalogue)
    found = [
        (dtype, setting)
        for one in definitions
        if one.op == op.name
        for dtype in one.dtypes
        for setting in one.settings
        if setting.world == 1
    ]
    if not found:
        raise UsageError(f"these scenarios have no sizes for op '{op.name}'", "name others, or --sizes")
    return found


def _sized(op: Op, text: str) -> Setting:
    from harness.scenario import Setting

    if not _SIZES.fullmatch(text):
        raise UsageError(f"--sizes {text}: aren't sizes", "write them as in --sizes M=1024,N=4096")
    parts = [part.partition("=") for part in text.split(",")]
    given = {name: value for name, _, value in parts}
    if wrong := _wrong(op, [name for name, _, _ in parts], given):
        also = f" and the choices {', '.join(op.choices)}" if op.choices else ""
        raise UsageError(
            f"--sizes {text}: {wrong}; op '{op.name}' has the sizes {', '.join(op.symbols)}{also}",
            "give each size once, as a whole number from 1 on",
        )
    chosen = {name: _chosen(op, name, given.get(name)) for name in op.choices}
    return Setting(tuple((symbol, int(given[symbol])) for symbol in op.symbols), tuple(chosen.items()))


def _wrong(op: Op, names: Sequence[str], given: Mapping[str, str]) -> str:
    """What is wrong with sizes as they are written; '' if nothing is."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        return f"{twice} is given twice"
    if unknown := next((name for name in names if name not in op.symbols and name not in op.choices), None):
        return f"there is no {unknown}"
    if lacking := [symbol for symbol in op.symbols if symbol not in given]:
        return f"{', '.join(lacking)} is missing" if len(lacking) == 1 else f"{', '.join(lacking)} are missing"
    for symbol in op.symbols:
        least = 0 if symbol in op.defaults else 1
        if not _SIZE.fullmatch(given[symbol]) or int(given[symbol]) < least:
            return f"{symbol} can't be {given[symbol]}"
    return ""


def _chosen(op: Op, name: str, text: str | None) -> Value:
    """The value of a choice: what the text says, or the choice's default."""
    choice = op.choices[name]
    if text is None:
        return choice.usual
    numbers = [float(text)] if re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+", text) else []
    found = next((value for value in choice.values if str(value) == text), None)
    value = found if found is not None else next((number for number in numbers if choice.accepts(number)), None)
    if value is None:
        raise UsageError(f"--sizes: {name} of op '{op.name}' can't be '{text}'", f"allowed: {choice.allowed}")
    return value


def _case(op: Op, variant: str, dtype: str, setting: Setting, device: str) -> Case:
    from harness.model import Case

    usual = tuple(name for name, value in setting.choices if value == op.choices[name].usual)
    return Case(op.name, variant, dtype, setting.shape, setting.choices, device=device, usual=usual)
