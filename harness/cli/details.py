"""`harness list op NAME` and `harness list scenario NAME`: one thing in detail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from harness import plans
from harness.cli.columns import Row, aligned
from harness.errors import UsageError, nearest
from harness.model.case import written
from harness.ops import Catalogue, Op, Tensor
from harness.ops.tuning import kernels_digest
from harness.scenario import Definition, find, load, overview
from harness.units import plural


def op(name: str, plugins: Sequence[Path] = ()) -> None:
    """Print an op. Raises UsageError if there is none of that name."""
    catalogue = Catalogue(plugins)
    if name not in catalogue:
        raise UsageError(f"no op is named '{name}'", nearest(name, catalogue))
    found = catalogue[name]
    lines = aligned([(f"{found.name}: {found.summary}",)], indent=0)
    for title, rows in _of_op(found):
        lines += [title, *aligned(rows)]
    typer.echo("\n".join(lines))


def scenarios(name: str, plugins: Sequence[Path] = ()) -> None:
    """Print the scenarios of a bundled name or a file. Raises InputError if there is none, or if it is wrong."""
    lines: list[str] = []
    for definition in load(find([name]), Catalogue(plugins)):
        lines += [
            f"{definition.name}: {definition.title}",
            *aligned([row for row in _of_scenario(definition) if row[-1]]),
        ]
    typer.echo("\n".join(lines))


def _of_op(found: Op) -> Iterator[tuple[str, list[Row]]]:
    """The parts of an op, each with its rows."""
    if found.symbols:
        yield "sizes", [(symbol, _meaning(found, symbol)) for symbol in found.symbols]
    if found.choices:
        rows = [(name, f"{c.meaning}: {c.allowed} (default {written(c.usual)})") for name, c in found.choices.items()]
        yield "choices", list(rows)
    if found.inputs:
        yield "inputs", [(tensor.name, _tensor(tensor)) for tensor in found.inputs]
    if found.outputs:
        yield "outputs", [(tensor.name, _tensor(tensor)) for tensor in found.outputs]
    yield "dtypes", [(", ".join(found.dtypes),)]
    variants = found.variants.values()
    yield "variants", [(v.name, v.role, ",".join(v.devices), ",".join(v.rows), v.summary) for v in variants]
    if tuned := [variant.name for variant in variants if variant.tuning]:
        searched = [(line,) for name in tuned for line in _tables(found, name)]
        yield (
            "plans",
            [(f"of {', '.join(tuned)}: 'harness tune {found.name}' searches the fastest on a GPU",), *searched],
        )
    measured = [entry.name for entry in overview(f"op: {found.name}") if found.name in entry.ops]
    yield "scenarios", [(", ".join(measured) or "none of the bundled ones",)]
    if found.file:
        yield "file", [(str(found.file),)]


def _meaning(found: Op, symbol: str) -> str:
    default = found.defaults.get(symbol)
    return found.symbols[symbol] + (f" (default {default})" if default else "")


def _tables(found: Op, variant: str) -> Iterator[str]:
    """At how many sizes a variant's plans were searched, on which GPU, and whether today's kernels were."""
    for whose, table in plans.every():
        entries = [entry for entry in table.entries if (entry.op, entry.variant) == (found.name, variant)]
        old = sum(entry.source != kernels_digest(found, variant) for entry in entries)
        if entries:
            unused = f", {old} of them unused: other kernels made the plans" if old else ""
            yield f"{variant} on {table.device}: {plural(len(entries), 'size')} in {whose} table{unused}"


def _tensor(tensor: Tensor) -> str:
    shape = "shape by its sizes" if callable(tensor.shape) else f"[{', '.join(map(str, tensor.shape))}]"
    dtype = "" if tensor.dtype == "case" else f" {tensor.dtype}"
    return f"{shape}{dtype}{', updated in place' if tensor.inplace else ''}"


def _of_scenario(found: Definition) -> Iterator[Row]:
    yield "shows", " ".join(found.shows.split())
    yield "source", found.source
    yield "rows", ", ".join(found.rows)
    yield "tags", ", ".join(found.tags)
    yield "op", found.op
    yield "dtypes", ", ".join(found.dtypes)
    yield "variants", ", ".join(found.variants)
    yield "baseline", found.baseline
    for number, setting in enumerate(found.settings):
        parts = [*setting.shape, *setting.choices, *([("world", setting.world)] if setting.world > 1 else [])]
        yield "" if number else "shapes", ", ".join(f"{name}={written(value)}" for name, value in parts)
    timing = found.timing
    yield "timing", f"until the interval is {100 * timing.precision:g}% wide, at most {timing.max_time:g} s a case"
    yield "claims", f"{len(found.claims)} of a public text" if found.claims else ""
    yield "floors", ", ".join(f"{f.variant} {f.metric} >= {f.value:g} ({f.where})" for f in found.expect)
    yield "file", str(found.file)
