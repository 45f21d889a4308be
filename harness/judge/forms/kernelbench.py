"""KernelBench's form: the classes Model and ModelNew, and functions that give their inputs and their arguments.

The reference may lie in a file of its own, as KernelBench has it, or in the candidate's. Both models are made with the
same seed; where their weights have the same names and sizes, the candidate gets copies of the reference's.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harness import contract
from harness.errors import UsageError, nearest
from harness.judge import data, loading
from harness.judge.forms import _op, _reference, _survey
from harness.judge.records import Asked, Sheet, Sized
from harness.judge.sources import Source, read
from harness.ops import FLOATS, Op

if TYPE_CHECKING:
    import torch

SUMMARY = "KernelBench's: a class ModelNew; Model, get_inputs and get_init_inputs there or in --reference FILE"
_NEEDED = ("Model", "get_inputs", "get_init_inputs")
_BATCH = "B"
_CUTS = ("all", "first")
"""Which inputs of a smaller batch are cut: all that have the batch, or the first alone, as a square matrix needs it."""


def recognises(asked: Asked, source: Source) -> bool:
    """Whether the file defines ModelNew."""
    return (
        not asked.op
        and (asked.isolated or (asked.function or "ModelNew") in source.names)
        and bool(_home(asked, source))
    )


def _home(asked: Asked, source: Source) -> Source | None:
    """The file with the reference; None if there is none of this form."""
    found = read(asked.reference) if asked.reference else source
    return found if {*_NEEDED} <= found.names else None


def sheet(asked: Asked, source: Source) -> Sheet:
    """What is known without running the candidate. Raises UsageError for sizes, which such a reference fixes."""
    if asked.sizes:
        raise UsageError(
            "--sizes can't be given: get_inputs() of this form fixes the sizes", "change the sizes in the reference"
        )
    dtypes = asked.dtypes or ("float32",)
    if len(dtypes) > 1 or dtypes[0] not in FLOATS:
        raise UsageError(f"--dtype {','.join(dtypes)} can't be judged in this form", f"name one of {', '.join(FLOATS)}")
    return Sheet(
        form="kernelbench",
        candidate=str(source.file.resolve()),
        reference=str((asked.reference or source.file).resolve()),
        function=asked.function or "ModelNew",
        device=asked.device,
        dtype=dtypes[0],
        seed=asked.seed,
        op=_reference.NAME,
        options={"manifest": dict(asked.manifest), "cast": dtypes[0]},
        timed=(Sized({}, {}),),
        notes=() if asked.reference else (_reference.IN_ONE_FILE,),
    )


def surveyed(sheet: Sheet) -> Sheet:
    """The sheet with the tensors of the model."""
    found = _Reference(sheet)
    found.cut = next(filter(found.takes, _CUTS), _CUTS[0])
    sheet = replace(sheet, options={**sheet.options, "cut": found.cut})
    sizes = {_BATCH: found.batch} if found.batch else {}
    return _survey.surveyed(replace(sheet, timed=(Sized({**sizes}, {**sizes}),)), found)


def op(sheet: Sheet) -> Op:
    """The op of the model."""
    return _op.op(sheet, reference, candidate)


def reference(sheet: Sheet) -> _reference.Reference:
    """The class Model, made."""
    return _Reference(sheet)


def candidate(sheet: Sheet, reference: _reference.Reference) -> _reference.Function:
    """The class ModelNew, made, with the reference's weights if it has weights of these names and sizes."""
    module = loading.load(sheet.candidate, loading.CANDIDATE, sheet.folders)
    if not hasattr(module, sheet.function):
        raise UsageError(f"{sheet.candidate}: defines no {sheet.function}", nearest(sheet.function, vars(module)))
    assert isinstance(reference, _Reference)
    return partial(_called, reference.made(getattr(module, sheet.function)))


def _called(model: Any, values: Any) -> Any:
    return model(*values)


def _sums(model: Any) -> list[int]:
    """The sum of the bits of each of a model's weights, which takes no memory as a copy would."""
    return [int(contract.bits(weight).sum()) for weight in model.state_dict().values()]


class _Reference:
    """The model of a reference, with its inputs.

    batch: the first size of the first input that has one; 0 if none has. cut: which inputs a smaller batch cuts.
    """

    decides = False

    def __init__(self, sheet: Sheet) -> None:
        import torch

        self._sheet = sheet
        self._place = _reference.torch_device(sheet)
        self._dtype = getattr(torch, sheet.options["cast"])
        module = loading.load(sheet.reference, loading.REFERENCE, sheet.folders)
        self._get_inputs: Callable[[], Any] = module.get_inputs
        arguments = self._seeded(module.get_init_inputs)
        # Some files give positional and named arguments apart.
        apart = len(arguments) == 2 and isinstance(arguments[0], list) and isinstance(arguments[1], dict)
        self._arguments, self._named = arguments if apart else (arguments, {})
        self._model = self._new(module.Model)
        self._precise: Any = None
        self._sums: dict[int, list[int]] = {}
        self._note(self._model)
        self.cut: str = sheet.options.get("cut", _CUTS[0])
        self.weights = sum(parameter.nbytes for parameter in self._model.parameters())
        sizes = [tensor.shape[0] for tensor in data.tensors(self._drawn(sheet.seed)) if tensor.dim()]
        self.batch = sizes[0] if sizes else 0

    def inputs(self, arguments: dict[str, Any], seed: int) -> Any:
        """What get_inputs gives for a seed; of a smaller batch the first elements of inputs that have the batch."""
        values = self._drawn(seed)
        size = arguments.get(_BATCH, self.batch)
        if size == self.batch:
            return values
        there = data.tensors(values)
        has_batch = [at for at, tensor in enumerate(there) if tensor.dim() and tensor.shape[0] == self.batch]
        for at in has_batch if self.cut == _CUTS[0] else has_batch[:1]:
            there[at] = there[at][:size].clone()
        return data.replaced(values, there)

    def takes(self, cut: str) -> bool:
        """Whether the model takes a smaller batch that is cut in this way."""
        self.cut = cut
        try:
            with _reference.exactly():
                return self.batch > 1 and bool(data.tensors(self.call(self.inputs({_BATCH: self.batch - 1}, 0))))
        except Exception:
            return False

    def call(self, values: Any) -> Any:
        """The model's outputs."""
        return self._model(*values)

    def precisely(self, values: Any) -> Any:
        """The outputs of a copy of the model in float64."""
        if self._precise is None:
            self._precise = copy.deepcopy(self._model).double()
            self._note(self._precise)
        return self._precise(*data.mapped(values, lambda one: one.double() if one.is_floating_point() else one))

    def complaint(self, values: Any, outputs: Any) -> str | None:  # noqa: ARG002 - as every form has it
        """A complaint if the reference's weights aren't as they were made: this form has no other check of its own."""
        models = filter(None, (self._model, self._precise))
        if all(_sums(model) == self._sums[id(model)] for model in models):
            return None
        return "the weights of the reference were changed, so what it gives isn't what is right"

    def _note(self, model: Any) -> None:
        """Remember the weights of a model of the reference."""
        self._sums[id(model)] = _sums(model)

    def vary(self, arguments: dict[str, Any], rng: random.Random) -> Iterator[dict[str, Any]]:
        """Smaller batches."""
        while self.batch > 1 and arguments:
            yield {_BATCH: rng.randint(1, self.batch - 1)}

    def made(self, model: Any) -> Any:
        """A model of another class, with the same weights where it has the same ones."""
        new = self._new(model)
        with suppress(Exception):  # weights of other names or sizes: then the same seed is all that they share
            new.load_state_dict(self._model.state_dict())
        return new

    def _new(self, model: Any) -> Any:
        import torch

        with torch.no_grad():
            new = self._seeded(partial(model, *self._arguments, **self._named))
            new = new.to(self._place, self._dtype)
        for parameter in new.parameters():
            parameter.requires_grad_(False)
        return new

    def _drawn(self, seed: int) -> Any:
        import torch

        try:
            with torch.device(self._place):  # random numbers of large inputs take seconds on the host
                values = self._seeded(self._get_inputs, seed)
        except RuntimeError:
            values = self._seeded(self._get_inputs, seed)
        return data.mapped(values, self._moved)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._place, dtype)

    def _seeded(self, make: Callable[[], Any], seed: int | None = None) -> Any:
        _reference.seed_all(self._place, self._sheet.seed if seed is None else seed)
        return make()
