"""A call of one code judged by another one: inputs and outputs go through files, each code stays in its process.

So the reference, the check and the inputs of the base can judge a kernel of the working tree, whatever its commit has
changed in them. Steps: 'give' writes the inputs, 'work' calls the variant and writes what it leaves, 'judge' compares
that with what is right. 'own' tells which inputs a code makes in another way, since a time may depend on them. Several
ranks take each step together, each with files of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from harness import check
from harness.devices import Device
from harness.model import Job
from harness.ops import Context, Op
from harness.ranks import ALONE, Group
from harness.session import EndedError, Session

if TYPE_CHECKING:
    import torch

Step = Literal["give", "work", "judge", "own"]
_INPUTS, _OUTPUTS = "inputs.pt", "outputs.pt"
_UNCHANGED = "unchanged inputs"  # no tensor has such a name
_MOST = 8 << 30
"""Bytes of inputs that are written."""


def take(  # noqa: PLR0913 - a case, with what makes it a session, and its files
    step: Step, job: Job, op: Op, device: Device, folder: Path, *, group: Group = ALONE
) -> tuple[str, str]:
    """Take a step. Gives (wrong, unable): what is wrong with the outputs, why the step can't be taken; "" for nothing.

    Of the step 'own', what is wrong is the name of an input that this code makes in another way.

    folder: where the steps before have left their files.
    """
    try:
        with Session(job.case, op, device, group) as session:
            if obstacle := session.obstacle():
                raise obstacle
            if step == "give":
                return "", _give(session, folder)
            return {"work": _work, "judge": _judge, "own": _own}[step](session, folder)
    except EndedError as ended:
        return "", f"{ended.status.replace('_', ' ')}: {ended.text}"


def _give(session: Session, folder: Path) -> str:
    inputs = vars(check.make_inputs(session.context()))
    if others := [name for name, value in inputs.items() if not _can_be_written(value)]:
        return f"its input {others[0]} isn't a tensor"
    size = sum(tensor.nbytes for value in inputs.values() for tensor in _tensors(value))
    if size > _MOST:
        return f"its inputs have more than {_MOST >> 30} GiB"
    _write(_file(session, folder, _INPUTS), inputs)
    return ""


def _work(session: Session, folder: Path) -> tuple[str, str]:
    op = session.op
    given = _read(_file(session, folder, _INPUTS), session.context())
    missing = [tensor.name for tensor in op.inputs if not hasattr(given, tensor.name)]
    if missing:
        return "", f"it has an input {missing[0]}, which the base's op doesn't have"
    session.prepare(given)
    fault, after = session.outcome()
    if fault := session.group.verdict(fault):
        return fault, ""
    wanted = [tensor.name for tensor in (*op.outputs, *op.inputs)]
    left = {name: value for name in wanted if _can_be_written(value := getattr(after, name, None))}
    # To write an input once more takes longer than all that is computed.
    before, place = _mapped(_file(session, folder, _INPUTS)), session.context().device
    kept = [each.name for each in op.inputs if _unchanged(left.get(each.name), _moved(before[each.name], place))]
    changed = {name: value for name, value in left.items() if name not in kept}
    _write(_file(session, folder, _OUTPUTS), changed | {_UNCHANGED: kept})
    return "", ""


def _judge(session: Session, folder: Path) -> tuple[str, str]:
    ctx, op = session.context(), session.op
    before, after = (_read(_file(session, folder, name), ctx) for name in (_INPUTS, _OUTPUTS))
    vars(after).update({name: _moved(getattr(before, name), ctx.device) for name in getattr(after, _UNCHANGED, ())})
    named = [tensor.name for tensor in (*op.outputs, *op.inputs)]
    if missing := [name for name in named if not hasattr(after, name)]:
        return "", f"the working tree's op has no {missing[0]}, which the base's op has"
    return session.group.verdict(check.verdict_of(ctx, session.variant, before, after).wrong) or "", ""


def _own(session: Session, folder: Path) -> tuple[str, str]:
    given, own = _read(_file(session, folder, _INPUTS), session.context()), check.make_inputs(session.context())
    named = [tensor.name for tensor in session.op.inputs]
    other = (name for name in named if not _equal(getattr(given, name, None), getattr(own, name, None)))
    return next(other, ""), ""


def _file(session: Session, folder: Path, name: str) -> Path:
    return folder / f"{session.group.rank}-{name}"


def _equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and bool(torch.equal(_bits(one), _bits(other)))
    return bool(one == other)


def _unchanged(value: Any, before: Any) -> bool:
    """Whether a value is as it was, in shape and strides too."""
    forms = [[(tensor.shape, tensor.stride()) for tensor in _tensors(each)] for each in (value, before)]
    return forms[0] == forms[1] and _equal(value, before)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor: NaN is as good as any other value."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _can_be_written(value: Any) -> bool:
    import torch

    if isinstance(value, (list, tuple)):
        return all(map(_can_be_written, value))
    return isinstance(value, (torch.Tensor, int, float, bool, str))


def _tensors(value: Any) -> list[torch.Tensor]:
    import torch

    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, torch.Tensor) else []


def _write(file: Path, values: Mapping[str, Any]) -> None:
    import torch

    torch.save({name: _moved(value, "cpu") for name, value in values.items()}, file)


def _read(file: Path, ctx: Context) -> SimpleNamespace:
    return SimpleNamespace(**{name: _moved(value, ctx.device) for name, value in _mapped(file).items()})


def _mapped(file: Path) -> dict[str, Any]:
    """What a file holds. Tensors aren't read before they are used, so one that is moved is copied once."""
    import torch

    values: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return values


def _moved(value: Any, place: Any) -> Any:
    """A copy of a tensor, or of each in a list; another value as it is."""
    import torch

    if isinstance(value, (list, tuple)):
        return [_moved(each, place) for each in value]
    return value.detach().to(place, copy=True) if isinstance(value, torch.Tensor) else value
