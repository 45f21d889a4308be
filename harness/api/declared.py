"""`op`: an op that is declared in a cell of a notebook, or a bundled one that gets more variants there.

In a cell:

    @hb.op(inputs={"x": "M N"}, reference=lambda x: torch.softmax(x.double(), -1))
    def softmax(x):
        return torch.softmax(x, -1)

    @softmax.variant
    def by_hand(x): ...

    run = softmax.run({"M": [1024], "N": [1000, 4096]}, dtypes=["float32"])
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Number
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import devices, limits, measure, scenario
from harness.api.advised import advised
from harness.api.runs import Folder, Named, StoredRun, listed, measured
from harness.devices import Device
from harness.errors import InputError, UsageError, nearest, shown, user_place
from harness.expressions import symbols_in
from harness.model import Job, Limits, Measurement
from harness.ops import Catalogue, Context, Launch, Op, Tensor, Variant, Work

_EXAMPLE = 'for example @hb.op(inputs={"x": "M N"}, reference=lambda x: torch.softmax(x.double(), -1))'
Function = Callable[..., Any]
Sizes = int | str | Sequence[int | str]
"""A size, an expression of other sizes, or several of them."""
Shaped = str | Sequence[str | int] | Tensor
"""The shape of a tensor: 'M N', or ('M', 'N'); or a whole declaration."""


class DeclaredOp:
    """An op in this process: calling it calls its first variant; `variant` adds one; `run` measures all."""

    def __init__(self, made: Op, function: Function | None = None) -> None:
        self.op = made
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise UsageError(f"'{self.op.name}' is a bundled op, no function", "measure it: run(...)")
        return self._function(*args, **kwargs)

    def variant(self, function: Function | str | None = None, **options: Any) -> Any:
        """Decorator that adds a variant, with or without arguments: a name, and fields of `harness.ops.Variant`.

        The parameters of the function are names of the op's inputs, sizes and choices. It returns the outputs, or has
        them among its parameters, too, and writes into them. A variant of the same name is replaced, as when a cell is
        run again. Raises UsageError for a parameter that the op doesn't have.
        """
        if callable(function):
            return self._add(function, function.__name__, options)
        return lambda own: self._add(own, function or own.__name__, options)

    @advised
    def run(  # noqa: PLR0913 - what a scenario says
        self,
        shapes: Mapping[str, Sizes] | Sequence[Mapping[str, int | str]] | None = None,
        *,
        dtypes: Named = (),
        variants: Named = (),
        only: Named = (),
        baseline: str | None = None,
        device: str | None = None,
        output: Folder | None = None,
        precision: float | None = None,
        max_time: float | None = None,
        **keys: Any,
    ) -> StoredRun:
        """Check, time and compare all variants in this process.

        shapes: sizes by symbol, each with the values to combine; or a list of shapes; none for the bundled scenario of
        the op's name. dtypes, variants: only these. baseline: the first variant unless told. output: the run's folder;
        unless told a temporary one, without a report. keys: other keys of a scenario, such as `choices`. Raises
        UsageError for what a scenario may not say. An error of the GPU leaves this process without one.
        """
        kind = devices.choose(device)
        catalogue = {self.op.name: self.op}
        self.op.refuse_unchecked()
        if shapes is None:
            if self.op.name not in {each.name for each in scenario.overview()}:
                advice = f"give them: run({dict.fromkeys(self.op.symbols, 1024)})"
                raise UsageError(f"no bundled scenario has sizes for op '{self.op.name}'", advice)
            definitions = scenario.load(scenario.find([self.op.name]), catalogue)
        else:
            usual = next(name for name, each in self.op.variants.items() if each.runs_on(kind))
            definitions = _definitions(self.op, shapes, {"baseline": baseline or usual, **keys}, listed(dtypes))
        selection = scenario.Selection(
            device=kind,
            only=listed(only),
            variants=listed(variants),
            dtypes=listed(dtypes),
            precision=precision,
            max_time=max_time,
        )
        plan = scenario.plan(definitions, catalogue, selection)
        folder = tempfile.mkdtemp(prefix=f"harness-{self.op.name}-") if output is None else output
        here = Here(devices.kinds()[kind], self.op)
        return measured(plan, folder, kind, report=output is not None, workers=here)

    def __repr__(self) -> str:
        return f"op {self.op.name}: {self.op.summary}; variants {', '.join(self.op.variants)}"

    @advised
    def _add(self, function: Function, name: str, options: Mapping[str, Any]) -> Function:
        summary = options.get("summary") or next(iter((function.__doc__ or name).splitlines()))
        parameters = _parameters(function, self.op)
        returns = not {tensor.name for tensor in self.op.outputs} & {*parameters}
        fields = {"devices": ("any",), "returns": returns, "place": _place(), **options, "summary": summary}
        made = Variant(name, prepare=_prepared(function, parameters), **fields)
        self.op = replace(self.op, variants={**self.op.variants, name: made})
        return function


class Here:
    """Measures in this process, where `harness.processes.supervisor.Workers` measures in others."""

    def __init__(self, device: Device, op: Op) -> None:
        self._device, self._op = device, op

    def measure(self, job: Job, process: int = 0, *, timed: bool = True) -> Measurement:
        """The job's measurement. What a variant raises is 'crashed', as in a process of its own."""
        from harness.errors import described

        try:
            return measure.measure(job, self._op, self._device, process=process, timed=timed)
        except Exception as error:
            return Measurement(job.case, "crashed", error=described(error), process=process)

    def limits(self, needs: limits.Needs, note: Callable[[str, float], None], fresh: bool = False) -> Limits:
        """What the machine can do."""
        return limits.ready(self._device, needs, fresh, note)

    def limits_again(self, start: Limits, note: Callable[[str, float], None]) -> Limits:  # noqa: ARG002
        """The same limits, with some measured again."""
        return limits.again(self._device, start)

    def begin_next(self, *, compiler: bool = False) -> None:
        """Do nothing: no process comes."""

    def restart(self) -> None:
        """Do nothing: the process is the user's."""

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@advised
def op(  # noqa: PLR0913 - what a declaration says
    name: str | None = None,
    *,
    inputs: Mapping[str, Shaped] | None = None,
    outputs: Mapping[str, Shaped] | None = None,
    reference: Function | None = None,
    bytes: Function | None = None,
    variants: Mapping[str, Function] | None = None,
    **fields: Any,
) -> Any:
    """Decorator that declares an op, whose first variant is the function; or, with a name alone, the bundled op.

    name: the function's unless told. inputs: shapes by name, of symbols such as 'M N'. outputs: the same; unless told
    one output 'y' like the first input. reference: a function of inputs, sizes and choices, named as they are, that
    gives the outputs in higher precision. bytes: a function of sizes, choices and `itemsize` that gives the bytes of a
    call, or a tuple of bytes read and written; unless told, of each tensor once. variants: more functions by name.
    fields: other fields of `harness.ops.Op`, such as `dtypes`, `tolerance`, `make`. Raises UsageError as Op does.
    """
    if callable(name) or not all(isinstance(each, Mapping | None) for each in (inputs, outputs, variants)):
        raise UsageError("inputs, outputs and variants of an op are dicts, by name", _EXAMPLE)
    if inputs is None:
        catalogue = Catalogue()
        if name is None or name not in catalogue:
            raise UsageError(f"no op is named {name!r}", nearest(name or "", catalogue))
        return DeclaredOp(replace(catalogue[name], variants=dict(catalogue[name].variants)))
    if not inputs and not outputs:
        raise UsageError("an op without inputs needs outputs=", 'for example outputs={"y": "N"}')
    taken = tuple(_tensor(*each) for each in inputs.items())
    made = tuple(_tensor(*each) for each in (outputs or {"y": taken[0]}).items())
    texts = [text for tensor in taken if not callable(tensor.shape) for text in tensor.shape]
    symbols = fields.pop("symbols", None) or {name: "" for text in texts for name in sorted(symbols_in(text))}

    @advised
    def declare(function: Function) -> DeclaredOp:
        own = name or function.__name__
        bare = Op(own, "", symbols, taken, made, choices=fields.get("choices", {}))
        summary = fields.pop("summary", "") or next(iter((function.__doc__ or own).splitlines()))
        declared = Op(
            own,
            summary,
            symbols,
            taken,
            made,
            reference=None if reference is None else _reference(reference, bare),
            work=None if bytes is None else _work(bytes),
            **fields,
        )
        found = DeclaredOp(declared, function)
        found.variant("eager" if variants is None else own, role="baseline")(function)
        for each, more in (variants or {}).items():
            found.variant(each)(more)
        return found

    return declare


def _tensor(name: str, shape: Shaped) -> Tensor:
    if isinstance(shape, Tensor):
        return replace(shape, name=name)
    if not isinstance(shape, Sequence):
        raise UsageError(f"the shape of '{name}' is {shown(shape)}", "write 'M N', or ('M', 'N')")
    return Tensor(name, tuple(shape.split() if isinstance(shape, str) else shape))


def _signature(function: Function) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name. Raises UsageError for what has none that Python knows."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # no function, or a builtin such as torch.relu
        message = f"{shown(function)} isn't a function whose parameters are known"
        raise UsageError(message, "write one whose parameters are named as inputs and sizes: lambda x: f(x)") from None


def _parameters(function: Function, made: Op) -> tuple[str, ...]:
    """The names of a function's parameters that the op has. Raises UsageError for another one without a default."""
    known = [tensor.name for tensor in (*made.inputs, *made.outputs)]
    known += [*made.symbols, *made.choices]
    parameters = _signature(function)
    for name, parameter in parameters.items():
        if name not in known and parameter.default is parameter.empty:
            message = f"{getattr(function, '__name__', 'the function')} has a parameter '{name}', op '{made.name}' not"
            raise UsageError(message, nearest(name, known))
    return tuple(name for name in parameters if name in known)


def _filled(function: Function, names: Sequence[str], ctx: Context, t: SimpleNamespace) -> Any:
    values = ctx.case.values
    return function(**{name: getattr(t, name) if hasattr(t, name) else values[name] for name in names})


def _prepared(function: Function, names: Sequence[str]) -> Callable[[Context], Launch]:
    def prepare(ctx: Context) -> Launch:
        fixed = {name: value for name, value in ctx.case.values.items() if name in names}
        tensors = [name for name in names if name not in fixed]
        return lambda t: function(**{name: getattr(t, name) for name in tensors}, **fixed)

    return prepare


def _reference(function: Function, made: Op) -> Callable[[Context, SimpleNamespace], dict[str, Any]]:
    names = _parameters(function, made)
    wanted = [tensor.name for tensor in (*made.outputs, *(each for each in made.inputs if each.inplace))]

    def reference(ctx: Context, t: SimpleNamespace) -> dict[str, Any]:
        returned = _filled(function, names, ctx, t)
        found = returned if isinstance(returned, tuple) else (returned,)
        if len(found) != len(wanted):
            raise UsageError(f"the reference returns {len(found)} tensors", f"return these: {', '.join(wanted)}")
        return dict(zip(wanted, found, strict=True))

    return reference


def _work(function: Function) -> Callable[[Mapping[str, Any], int], Work]:
    names = [*_signature(function)]

    def work(symbols: Mapping[str, Any], itemsize: int) -> Work:
        found = function(**{name: {**symbols, "itemsize": itemsize}[name] for name in names})
        return Work(*found) if isinstance(found, tuple) else Work(read=found - found // 2, written=found // 2)

    return work


def _definitions(made: Op, shapes: Any, keys: Mapping[str, Any], dtypes: Sequence[str]) -> Any:
    """The scenario of an op, checked as a file with it is."""
    import yaml

    product = isinstance(shapes, Mapping)
    if not product and not (isinstance(shapes, list | tuple) and all(isinstance(each, Mapping) for each in shapes)):
        advice = "write run({'N': [1000, 4096]}), or run([{'N': 1000}, {'N': 4096}])"
        raise UsageError(f"shapes={shown(shapes)} are no sizes by symbol", advice)
    sizes = {"product": {name: listed_sizes(size) for name, size in shapes.items()}} if product else [
        {name: _plain(size) for name, size in shape.items()} for shape in shapes
    ]  # fmt: skip
    wanted: dict[str, Any] = {"title": made.summary or made.name, "op": made.name, "shapes": sizes}
    wanted |= {"dtypes": list(dtypes) or list(made.dtypes), **keys}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{made.name}.yaml")
        file.write_text(yaml.safe_dump(wanted, sort_keys=False), encoding="utf-8")
        try:
            return scenario.load([file], {made.name: made})
        except InputError as error:
            # The user has no such file: the key alone says where.
            own = [replace(problem, where=problem.where.partition(": ")[2] or made.name) for problem in error.problems]
            raise InputError(own) from None


def listed_sizes(size: Any) -> list[Any]:
    """A size, or several, as a list."""
    return [_plain(each) for each in ([size] if isinstance(size, Number | str) else size)]


def _plain(size: Any) -> Any:
    """A size as YAML has it: an integer of numpy's is one of Python's."""
    return int(size) if isinstance(size, Integral) and not isinstance(size, bool) else size


def _place() -> str:
    """The file and line of the user's code; '' for a cell of a notebook, which no file has."""
    place = user_place()
    return place if Path(place.rpartition(":")[0]).is_file() else ""
