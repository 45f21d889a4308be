"""Looks at a reference of another project by running it: which tensors there are, and which sizes it takes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness import check, contract
from harness.errors import UsageError, brief, described
from harness.judge import data
from harness.judge.forms._reference import TOLERANCE, Reference, compared, copied, exactly, torch_device
from harness.judge.records import Sheet, Sized
from harness.ops import ITEMSIZE, comparer

if TYPE_CHECKING:
    import torch

_UNSEEN = 4  # sizes that nobody knew
_TRIES = 32


def surveyed(sheet: Sheet, reference: Reference) -> Sheet:
    """The sheet with the tensors of each case, and with cases of other sizes that the reference takes."""
    place = torch_device(sheet)
    known = [_looked_at(reference, place, case, sheet.seed) for case in (*sheet.timed, *sheet.tested)]
    timed, tested = tuple(known[: len(sheet.timed)]), tuple(known[len(sheet.timed) :])
    smallest = min(known, key=_elements)
    precise, note = _precision(reference, smallest, sheet.seed)
    is_constant = _is_constant(reference, smallest, sheet.seed)
    notes = [note]
    if is_constant:
        notes.append("The reference gives the same outputs for other inputs, so a constant is right here.")
    unseen = tuple(_unseen(reference, place, timed, sheet.seed))
    if not unseen:
        notes.append("The reference takes no other sizes, so only values are new to the candidate.")
    return replace(
        sheet,
        timed=timed,
        tested=tested,
        unseen=unseen,
        precise=precise,
        is_constant=is_constant,
        dtype=_dtype(timed[0]),
        notes=(*sheet.notes, *notes),
    )


def _looked_at(reference: Reference, place: torch.device, case: Sized, seed: int) -> Sized:
    """The case with its tensors. Raises UsageError where the reference can't be judged by."""
    what = f"the reference at {_told(case)}"
    try:
        values = reference.inputs(case.arguments, seed)
        again = reference.inputs(case.arguments, seed + 1)
        with exactly():
            outputs = data.tensors(reference.call(copied(values)))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{what} fails: {brief(described(error))}", "mend the reference, or its sizes") from error
    every = [data.described(tensor, at) for at, tensor in enumerate(data.tensors(values))]
    if every != [data.described(tensor, at) for at, tensor in enumerate(data.tensors(again))]:
        raise UsageError(f"{what} has inputs whose sizes depend on the seed", "give every seed the same sizes")
    for one in (*every, *map(data.described, outputs)):
        if one.dtype not in ITEMSIZE:
            raise UsageError(f"{what} has a tensor of {one.dtype}", f"known: {', '.join(ITEMSIZE)}")
    if not outputs:
        raise UsageError(f"{what} returns no tensor", "return one, or a tuple of tensors")
    own = [one for one, tensor in zip(every, data.tensors(values), strict=True) if tensor.device.type == place.type]
    unread = [one for one in own if _is_unread(reference, values, one.place, outputs)]
    inputs = tuple(one for one in own if one not in unread)
    made = tuple(data.described(tensor, at) for at, tensor in enumerate(outputs))
    return replace(case, inputs=inputs, outputs=made, buffers=tuple(unread), weights=reference.weights)


def _is_unread(reference: Reference, values: Any, place: int, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor of the data is memory for outputs alone: with other values in it nothing changes."""
    spoilt = data.tensors(copied(values))
    form = (spoilt[place].shape, spoilt[place].dtype)
    if form not in [(one.shape, one.dtype) for one in outputs]:
        return False
    check.poison([spoilt[place]])
    try:
        with exactly():
            again = data.tensors(reference.call(data.replaced(values, spoilt)))
            return comparer.complaint(compared(again, outputs)) is None
    except Exception:
        return False


def _precision(reference: Reference, case: Sized, seed: int) -> tuple[bool, str]:
    """Whether float64 gives what is right, and a sentence on it. Raises UsageError for a reference that is random."""
    values = reference.inputs(case.arguments, seed)
    with exactly():
        outputs, again = (data.tensors(reference.call(copied(values))) for _ in range(2))
        if wrong := comparer.complaint(compared(again, outputs)):
            advice = "give a reference that gives the same result each time: no dropout, no random numbers"
            raise UsageError(f"the reference gives another result at each call: {wrong}", advice)
        plain = str(outputs[0].dtype).removeprefix("torch.")
        native = f"The reference runs in {plain} with TF32 off"
        if not all(one.dtype.is_floating_point for one in outputs):
            return (
                False,
                "The reference runs as it is, with TF32 off: it has outputs that rounding may turn into others.",
            )
        try:
            exact = data.tensors(reference.precisely(copied(values)))
        except Exception as error:
            return False, f"{native}: in float64 it fails ({brief(described(error))})."
    if [one.shape for one in exact] != [one.shape for one in outputs]:
        return False, f"{native}: in float64 its outputs have other sizes."
    if wrong := comparer.judged(compared(outputs, exact), check.LEEWAY).wrong:
        return False, f"{native}: float64 isn't what it rounds to ({wrong})."
    if exact[0].dtype.itemsize < 8:
        return True, f"The reference runs with inputs in float64, and converts them to {plain} itself."
    return True, "The reference runs in float64."


def _is_constant(reference: Reference, case: Sized, seed: int) -> bool:
    """Whether the outputs don't depend on the values of the inputs.

    Raises UsageError for inputs that a seed doesn't fix, and for inputs that are the same for every seed: a result that
    a candidate keeps would be right for all of them.
    """
    values, again, other = (reference.inputs(case.arguments, each) for each in (seed, seed, seed + 1))
    places = [one.place for one in case.inputs]
    drawn, repeated, others = ([data.tensors(one)[place] for place in places] for one in (values, again, other))
    what = f"the inputs of the reference at {_told(case)}" if case.sizes else "the inputs of the reference"
    if not all(map(contract.same, drawn, repeated)):
        advice = "draw them by the generators of torch, of numpy or of Python, which are seeded before"
        raise UsageError(f"{what} differ from one time to the next for the same seed", advice)
    if drawn and all(map(contract.same, drawn, others)):
        advice = "draw random numbers where inputs are made, and leave the seed to the harness"
        raise UsageError(f"{what} are the same for every seed, so a result that was kept would be right", advice)
    if not (drawn or case.buffers):  # an input that is never read looks like memory for outputs
        return False
    with exactly():
        first, second = (data.tensors(reference.call(copied(one))) for one in (values, other))
        return comparer.complaint(compared(first, second)) is None


def _unseen(reference: Reference, place: torch.device, timed: Sequence[Sized], seed: int) -> Iterator[Sized]:
    """Cases with sizes that the reference takes, of up to `_TRIES` drawn ones."""
    rng = random.Random(seed)
    known = [case.arguments for case in timed]
    drawn = [reference.vary(case.arguments, rng) for case in timed]
    found = 0
    for number in range(_TRIES):
        arguments = next(drawn[number % len(drawn)], None)
        if arguments is None or arguments in known or found == _UNSEEN:
            continue
        known.append(arguments)
        case = replace(timed[number % len(timed)], arguments=arguments)
        case = replace(case, sizes=_renamed(case, timed[number % len(timed)].arguments))
        try:
            looked = _looked_at(reference, place, case, seed)
        except UsageError:
            continue
        # Inputs without elements have no values to be right about; other dtypes would be another op.
        like = timed[number % len(timed)]
        alike = [one.dtype for one in looked.inputs] == [one.dtype for one in like.inputs]
        if alike and len(looked.outputs) == len(like.outputs) and len(looked.buffers) == len(like.buffers):
            found += 1
            yield looked


def _renamed(case: Sized, before: dict[str, Any]) -> dict[str, int | str]:
    """The sizes of a case whose arguments have changed. Sizes stand in the order of their arguments."""
    changed = dict(zip(before, case.arguments.values(), strict=True))
    return {
        name: changed[argument] if isinstance(size, int) else size
        for (name, size), argument in zip(case.sizes.items(), before, strict=True)
    }


def _elements(case: Sized) -> int:
    return sum(math.prod(one.shape) for one in (*case.inputs, *case.outputs))


def _dtype(case: Sized) -> str:
    """The dtype that stands for the case: its first output's if that is a float, else the first float's."""
    floats = [one.dtype for one in (*case.outputs, *case.inputs) if one.dtype in TOLERANCE]
    return (floats or [case.outputs[0].dtype])[0]


def _told(case: Sized) -> str:
    return ", ".join(f"{name}={value}" for name, value in case.sizes.items())
