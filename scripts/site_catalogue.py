"""The reference pages of the site that come from the catalogue: each op, and the list of metrics."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from types import FunctionType

from site_pages import REPORT, ROOT, RUNS, Pages
from tables import table

from harness.metrics import COMMON, COUNTED, METRICS, Metric
from harness.model import Work
from harness.model.case import written
from harness.ops import Catalogue, Op, Tensor
from harness.report.formats.markdown import cell, code, prose
from harness.scenario import load
from harness.scenario.definition import Definition
from harness.units import BYTES

FOLDER = PurePosixPath("reference/catalogue")
_KEYS = (
    "The names are the keys in scenarios, in `results.csv` and in `results.json`. Values in files are in SI units "
    "without a prefix; a share of 1 is 100%."
)


def write(pages: Pages) -> None:
    """Write the page of each op of this repository and the list of them. Other packages may bring ops as well."""
    known = Catalogue()
    catalogue = {name: op for name, op in known.items() if op.file and op.file.is_relative_to(ROOT)}
    measured, runs = _scenarios(known), _runs(pages.runs)
    for name, op in catalogue.items():
        place = FOLDER / f"{name}.md"
        pages.write(place, "\n\n".join(_op(op, measured[name], runs[name], pages, place)) + "\n")
    pages.write(FOLDER / "index.md", _index(catalogue))


def _scenarios(catalogue: Catalogue) -> dict[str, list[Definition]]:
    """The bundled scenarios of each op."""
    found: dict[str, list[Definition]] = defaultdict(list)
    for definition in load(sorted((ROOT / "scenarios").glob("*.yaml")), catalogue):
        found[definition.op].append(definition)
    return found


def _runs(names: frozenset[str]) -> dict[str, list[str]]:
    """The runs of the site that measured each op, by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        header = json.loads((ROOT / RUNS / name / "run.json").read_text(encoding="utf-8"))
        for op in dict.fromkeys(scenario["op"] for scenario in header["scenarios"]):
            found[op].append(name)
    return found


def _index(catalogue: Mapping[str, Op]) -> str:
    """The list of ops, by the folder of their files."""
    families: dict[str, list[Op]] = defaultdict(list)
    for op in catalogue.values():
        assert op.file
        families[op.file.parent.name].append(op)
    parts = ["# The catalogue", f"{len(catalogue)} ops, by the folder of their files."]
    for family, ops in families.items():
        rows = [(f"[{op.name}]({op.name}.md)", cell(op.summary), str(len(op.variants))) for op in ops]
        parts += [
            f"## {family.replace('_', ' ')}",
            "\n".join(table(("op", "what it computes", "variants"), iter(rows), 2)),
        ]
    tree = ["```{toctree}", ":hidden:", "", *sorted(catalogue), "```"]
    return "\n\n".join([*parts, "\n".join(tree)]) + "\n"


def _op(
    op: Op, scenarios: Sequence[Definition], runs: Sequence[str], pages: Pages, place: PurePosixPath
) -> Iterator[str]:
    yield f"# {op.name}"
    yield f"{cell(op.summary)}."
    if op.symbols:
        rows = [(code(name), cell(text), code(str(op.defaults.get(name, "")))) for name, text in op.symbols.items()]
        width = 3 if op.defaults else 2
        yield _table("Sizes", ("symbol", "meaning", "default")[:width], [row[:width] for row in rows])
    if op.choices:
        yield _table(
            "Choices",
            ("choice", "meaning", "values", "default"),
            [(code(n), cell(c.meaning), cell(c.allowed), code(written(c.usual))) for n, c in op.choices.items()],
        )
    tensors = [
        (code(t.name), role, *_tensor(t)) for role, ts in (("input", op.inputs), ("output", op.outputs)) for t in ts
    ]
    if tensors:
        yield _table("Tensors", ("tensor", "is", "shape", "type"), tensors)
    yield f"Types of a case: {', '.join(map(code, op.dtypes))}."
    variants = [
        (code(v.name), v.role, cell(", ".join(v.devices)), ", ".join(v.rows), cell(v.summary))
        for v in op.variants.values()
    ]
    yield _table("Variants", ("variant", "role", "devices", "rows", "what it does"), variants)
    if any(v.rows for v in op.variants.values()):
        yield f"Rows are {pages.link('techniques of public texts', RUNS / 'rows.md', place)}."
    yield from _work(op, scenarios)
    yield from _where(op, scenarios, runs, pages, place)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([f"## {title}", "", *table(head, iter(rows), len(head))])


def _tensor(tensor: Tensor) -> tuple[str, str]:
    shape = "by the sizes" if callable(tensor.shape) else code(f"[{', '.join(map(str, tensor.shape))}]")
    dtype = "of the case" if tensor.dtype == "case" else code(tensor.dtype)
    return shape, f"{dtype}, updated in place" if tensor.inplace else dtype


def _work(op: Op, scenarios: Sequence[Definition]) -> Iterator[str]:
    """What a call has to do, by declaration, and at the first setting of a scenario."""
    yield "## Work"
    if op.work is None:
        yield "Each input is read once, and each output is written once."
    elif isinstance(op.work, FunctionType) and op.work.__name__ != "<lambda>":
        yield f"By count, `s` being the sizes and choices:\n\n```python\n{inspect.getsource(op.work).rstrip()}\n```"
    if op.flops:
        yield f"Operations: {', '.join(f'{code(text)} in {kind}' for kind, text in op.flops.items())}."
    if example := next(((scenario.dtypes[0], scenario.settings[0]) for scenario in scenarios), None):
        dtype, setting = example
        values = [*setting.shape, *setting.choices, *([("world", setting.world)] if setting.world > 1 else [])]
        named = ", ".join(f"{name}={written(value)}" for name, value in values)
        yield f"For example, a call at `{named}` in {dtype}: {_amounts(op.work_of(setting.values, dtype))}."


def _amounts(work: Work) -> str:
    parts = [("reads", work.read), ("writes", work.written), ("sends", work.sent)]
    amounts = [f"{verb} {BYTES.write(number)}" for verb, number in parts if number]
    amounts += [f"does {number:.4g} operations in {kind}" for kind, number in work.flops]
    return ", ".join(amounts) or "nothing that counts"


def _where(
    op: Op, scenarios: Sequence[Definition], runs: Sequence[str], pages: Pages, place: PurePosixPath
) -> Iterator[str]:
    """Where the op is measured, and where its code lies."""
    yield "## Where it is"
    files = dict.fromkeys(PurePosixPath(s.file.relative_to(ROOT).as_posix()) for s in scenarios if s.file)
    lines = [
        "- Scenarios: "
        + (", ".join(pages.link(file.stem, file, place) for file in files) or "none of the bundled ones")
    ]
    lines.append(
        "- Runs: " + (", ".join(pages.link(name, RUNS / name / REPORT, place) for name in runs) or "none on this site")
    )
    if op.file:
        file = PurePosixPath(op.file.relative_to(ROOT).as_posix())
        sources = [file, PurePosixPath("kernels", file.parent.name, f"{file.stem}.cu")]
        found = [pages.link(code(str(path)), path, place) for path in sources if (ROOT / path).is_file()]
        lines.append(f"- Code: {', '.join(found)}")
    lines.append(f"- On the command line: `harness list op {op.name}`")
    yield "\n".join(lines)


def metrics() -> str:
    """The page of all metrics: those that every op may have, those of counters, and those of single ops."""
    Catalogue()  # loading the ops registers the metrics that they declare
    groups = (
        ("Of every case", [m for m in METRICS.values() if m.name in COMMON]),
        ("From hardware counters", [m for m in METRICS.values() if m.name in COUNTED]),
        ("Declared by ops of the collection", [m for m in METRICS.values() if m.name not in COMMON | COUNTED]),
    )
    parts = ["# Metrics", _KEYS]
    for title, group in groups:
        parts.append("\n".join([f"## {title}", "", *map(_metric, group)]))
    return "\n\n".join(parts) + "\n"


def _metric(metric: Metric) -> str:
    """An item of the list. Hints are long, so a table would be too narrow on a telephone."""
    better = f"; {metric.better} is better" if metric.better else ""
    hint = f": {prose(metric.hint)}" if metric.hint else ""
    return f"- {code(metric.name)}, {prose(metric.title)} (from {_from(metric)}{better}){hint}"


def _from(metric: Metric) -> str:
    """What a metric is computed from."""
    known = (
        (metric.reported, "the variant"),
        (metric.by_counters, "counters"),
        (metric.by_trace, "a trace"),
        (metric.by_count, "count"),
        (metric.relative == "variant", "another variant"),
        (metric.relative == "world", "one device"),
        (metric.of_limits, "limits of the machine"),
    )
    return next((said for holds, said in known if holds), "measurement")
