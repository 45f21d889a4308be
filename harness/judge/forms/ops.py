"""Our form: a function, or a variant, for an op that is there, which --op names.

A function takes the op's tensors, sizes and choices by the names of its parameters. One that names an output writes
into it, as kernels do; another one returns the outputs. A file may also add a variant: `@find("softmax").variant(...)`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from harness import contract
from harness.errors import UsageError, nearest
from harness.expressions import evaluate
from harness.judge import data, isolated, loading, sizes
from harness.judge.records import CANDIDATE, Asked, Sheet
from harness.judge.sources import Source
from harness.ops import ANY_DEVICE, Catalogue, Context, Launch, Op, Tensors, find
from harness.scenario.names import which_op
from harness.session import EndedError

SUMMARY = "ours: --op NAME, and a file with a function, or with a variant of the op"


def recognises(asked: Asked, source: Source) -> bool:  # noqa: ARG001 - as every form has it
    """Whether an op is named."""
    return bool(asked.op)


def sheet(asked: Asked, source: Source) -> Sheet:
    """What is known without running the candidate. Raises UsageError for a function that can't be called."""
    catalogue = Catalogue(asked.plugins)
    if asked.op not in catalogue:
        raise UsageError(f"no op is named '{asked.op}'", which_op(asked.op, catalogue))
    if asked.reference:
        raise UsageError("--reference can't be given with --op: the op has its reference", "leave one of them out")
    op = catalogue[asked.op]
    known = Sheet(
        form="ops",
        candidate=str(source.file.resolve()),
        reference="",
        function=asked.function,
        device=asked.device,
        dtype="",
        seed=asked.seed,
        op=op.name,
        options={"manifest": dict(asked.manifest), "plugins": [str(file.resolve()) for file in asked.plugins]},
    )
    if asked.isolated:
        isolated.refuse(op, asked.manifest, str(asked.candidate))
    if asked.isolated or source.adds:
        return known
    name = asked.function or _only(source)
    if name not in source.functions:
        advice = f"wrap it: def f(...): return {name}(...)" if name in source.names else nearest(name, source.functions)
        raise UsageError(f"{source.file}: defines no function '{name}'", advice)
    parameters = _parameters(op, source.file, name, source.functions[name])
    return replace(known, function=name, options={**known.options, "parameters": parameters})


def _only(source: Source) -> str:
    """The only public function of a file."""
    if not source.public:
        advice = "write one by def; a name that is imported or assigned is none: def f(...): return name(...)"
        raise UsageError(f"{source.file}: defines no public function", advice)
    if len(source.public) > 1:
        found = ", ".join(source.public)
        raise UsageError(f"{source.file}: defines {found} as public functions", "name one by --function NAME")
    return source.public[0]


def _parameters(op: Op, file: Path, name: str, given: Sequence[str]) -> list[str]:
    """The names of what a function is given, in order. Raises UsageError for a parameter that the op doesn't have."""
    inputs = [tensor.name for tensor in op.inputs]
    known = [*inputs, *(tensor.name for tensor in op.outputs), *op.symbols, *op.choices]
    if unknown := next((parameter for parameter in given if parameter not in known), None):
        if len(given) == len(inputs):
            return inputs  # by their order
        allowed = f"parameters are named {', '.join(known)}, or are as many as inputs: {', '.join(inputs)}"
        raise UsageError(f"{file}: {name} has a parameter '{unknown}', which op '{op.name}' doesn't have", allowed)
    return list(given)


def surveyed(sheet: Sheet) -> Sheet:
    """The sheet, with what a file says of the variant that it adds. This process may end by it."""
    if sheet.options["manifest"] or "parameters" in sheet.options:
        return sheet
    added = _added(sheet.candidate, tuple(sheet.options["plugins"]), sheet.op)
    name = sheet.function or next(iter(added), "")
    if not added:
        raise UsageError(f"{sheet.candidate}: adds no variant to op '{sheet.op}'", f"@find('{sheet.op}').variant(...)")
    if name not in added or (len(added) > 1 and not sheet.function):
        found = ", ".join(added)
        raise UsageError(f"{sheet.candidate}: adds to op '{sheet.op}' the variants {found}", "name one by --function")
    variant = added[name]
    if variant.inputs is not None or variant.outputs is not None:
        advice = "give it the op's tensors, or measure it by: harness run --ops FILE"
        raise UsageError(f"variant '{name}' declares tensors of its own, which can't be judged", advice)
    known = {"returns": variant.returns, "devices": list(variant.devices), "encodes": variant.encode is not None}
    return replace(sheet, function=name, options={**sheet.options, "variant": known})


@cache
def _added(file: str, plugins: tuple[str, ...], op: str) -> Mapping[str, Any]:
    """The variants that a file adds to an op."""
    before = Catalogue(tuple(map(Path, plugins)))[op].variants
    after = Catalogue(tuple(map(Path, (*plugins, file))))[op].variants
    return {name: variant for name, variant in after.items() if name not in before}


def op(sheet: Sheet) -> Op:
    """The op, to which the candidate is added as a variant."""
    made, options = find(sheet.op), sheet.options
    if options["manifest"]:
        isolated.add(made, sheet)
        return made
    fields: dict[str, Any] = {"devices": (ANY_DEVICE,), "place": f"{sheet.candidate}:1"}
    prepare: Callable[[Context], Launch]
    if "parameters" in options:
        outputs = {tensor.name for tensor in made.outputs}
        fields["returns"] = bool(outputs) and not outputs & {*options["parameters"]}
        prepare = _function(sheet)
    else:
        own, prepare = _Own(sheet), _variant(sheet)
        fields |= {"returns": options["variant"]["returns"], "devices": tuple(options["variant"]["devices"])}
        fields |= {"unsupported": own.unsupported} | ({"encode": own.encode} if options["variant"]["encodes"] else {})
    made.variant(CANDIDATE, "what is judged", **fields)(prepare)
    return made


def _function(sheet: Sheet) -> Callable[[Context], Launch]:
    """Prepares a function of the candidate: it is given tensors, sizes and choices."""

    def prepare(ctx: Context) -> Launch:
        function = getattr(loading.load(sheet.candidate, loading.CANDIDATE), sheet.function)
        values, parameters = ctx.case.values, sheet.options["parameters"]
        if not any(name in values for name in parameters):
            return lambda t: function(*[getattr(t, name) for name in parameters])
        return lambda t: function(*[values[name] if name in values else getattr(t, name) for name in parameters])

    return prepare


class _Own:
    """The variant of the candidate's file, loaded where it is used."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._is_tried = False

    @property
    def variant(self) -> Any:
        sheet = self._sheet
        return _added(sheet.candidate, tuple(sheet.options["plugins"]), sheet.op)[sheet.function]

    def encode(self, ctx: Context, t: Tensors) -> dict[str, Any]:
        """What the variant encodes."""
        found: dict[str, Any] = self.variant.encode(ctx, t)
        if not self._is_tried:
            self._is_tried = True
            if _differs(found, _of_other_values(ctx, t, self.variant.encode)):
                raise EndedError(
                    "wrong",
                    "what encode() gives depends on the values of inputs, and isn't timed: compute it in the call",
                )
        return found

    def unsupported(self, case: Any) -> str | None:
        """Why the variant can't run a case."""
        found: str | None = self.variant.unsupported(case) if self.variant.unsupported else None
        return found


def _of_other_values(ctx: Context, t: Tensors, encode: Callable[[Context, Tensors], dict[str, Any]]) -> dict[str, Any]:
    """What is encoded of the same memory where the elements of each input lie in the reverse order."""
    inputs = data.tensors([getattr(t, tensor.name) for tensor in ctx.op.inputs])
    before = [tensor.clone() for tensor in inputs]
    for tensor in inputs:
        tensor.copy_(tensor.reshape(-1).flip(0).view(tensor.shape))
    try:
        return encode(ctx, t)
    finally:
        for tensor, values in zip(inputs, before, strict=True):
            tensor.copy_(values)


def _differs(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether tensors or numbers of two encodings have other values."""
    first, second = data.tensors(found), data.tensors(other)
    numbers = [
        {name: value for name, value in one.items() if isinstance(value, (int, float))} for one in (found, other)
    ]
    return len(first) != len(second) or not all(map(contract.same, first, second)) or numbers[0] != numbers[1]


def _variant(sheet: Sheet) -> Callable[[Context], Launch]:
    own = _Own(sheet)

    def prepare(ctx: Context) -> Launch:
        launch: Launch = own.variant.prepare(ctx)
        return launch

    return prepare


def other_sizes(op: Op, known: Mapping[str, int], rng: random.Random) -> Iterator[dict[str, int]]:
    """Sizes of an op near or below known ones. Those that are as the op's defaults say stay so."""
    following = {symbol: text for symbol, text in op.defaults.items() if known[symbol] == evaluate(text, known)}
    free = {symbol: size for symbol, size in known.items() if symbol not in following and size >= 1}
    for made in sizes.drawn(free, rng):
        found = {**known, **made}
        for symbol, text in following.items():
            found[symbol] = evaluate(text, found)
        yield {symbol: found[symbol] for symbol in op.symbols}
