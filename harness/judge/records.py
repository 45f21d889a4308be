"""What is asked of a judge, what is known of the candidate, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.model import Timing

CANDIDATE = "candidate"
"""The name of the candidate's variant."""
SHEET = "sheet.json"
STRIDES = "strides"
"""The code of the warning that outputs lie in memory in another order than the reference's."""
IN_PARTS = "in-parts"
"""The code of the warning that torch.compile compiled a part of the reference, or several parts apart."""
Verdict = Literal["right", "wrong", "implausible", "crashed", "timeout", "out_of_memory", "unsupported"]


@dataclass(frozen=True, slots=True)
class Asked:
    """The request.

    sizes: sizes by name at which the candidate is timed, instead of the form's own. isolated: the candidate is a
    manifest of kernels, which stands in `manifest` once it is read.
    """

    candidate: Path
    device: str
    seed: int
    op: str = ""
    function: str = ""
    reference: Path | None = None
    plugins: tuple[Path, ...] = ()
    sizes: tuple[Mapping[str, int], ...] = ()
    dtypes: tuple[str, ...] = ()
    timing: Timing = field(default_factory=Timing)
    isolated: bool = False
    manifest: Mapping[str, Any] = field(default_factory=dict)
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of a tensor: sizes, and the name of its dtype. place: its number among all tensors of the data.

    strides: how many elements lie between neighbours of each dimension.
    """

    shape: tuple[int, ...]
    dtype: str
    place: int = 0
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sized:
    """A case of a form that isn't ours. arguments: what its inputs are made of.

    sizes: the same as an op's symbols and choices. inputs, outputs: their tensors. buffers: tensors among the data that
    the reference never reads: memory for outputs. weights: bytes of the model's parameters.
    """

    sizes: dict[str, int | str]
    arguments: dict[str, Any]
    inputs: tuple[TensorForm, ...] = ()
    outputs: tuple[TensorForm, ...] = ()
    buffers: tuple[TensorForm, ...] = ()
    weights: int = 0


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the processes that judge must know of a candidate; it is a file beside the plug-in that they load.

    form: a name in `forms`. options: what the form itself noted. timed, tested, unseen: cases of a form that isn't
    ours: at which the candidate is timed; which the form brings for tests; whose sizes nobody knew before. precise: the
    reference is computed in float64. is_counted: the bytes of inputs and outputs are what the op must move.
    is_constant: the reference gives the same outputs for other inputs.
    notes: sentences for the reader.
    """

    form: str
    candidate: str
    reference: str
    function: str
    device: str
    dtype: str
    seed: int
    op: str
    folders: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    timed: tuple[Sized, ...] = ()
    tested: tuple[Sized, ...] = ()
    unseen: tuple[Sized, ...] = ()
    precise: bool = True
    is_counted: bool = True
    is_constant: bool = False
    notes: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[Sized, ...]:
        return (*self.timed, *self.tested, *self.unseen)


@dataclass(frozen=True, slots=True)
class Calls:
    """What torch's dispatcher saw of a call of the candidate.

    torch: calls that compute, of torch's own. others: calls of other libraries' operators. only_torch: each output is
    what such a call of torch computed, of what it was given.
    """

    torch: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    only_torch: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """A case that was checked and not timed. why: what is wrong.

    sizes: 'given' (it is timed as well), 'tested' (the form brings it for tests), or 'unseen'.
    """

    case: str
    status: str
    why: str = ""
    sizes: str = "unseen"


@dataclass(frozen=True, slots=True)
class Timed:
    """A case that was timed: seconds, the 95% interval, the share of the ceiling, the same for torch's baselines.

    baselines: seconds by name. best: the name of the fastest one. speedup: its time over the candidate's, with the
    bounds that the ends of both intervals give. reason: what stops the candidate, as 'harness explain' says it.
    """

    case: str
    status: str
    why: str = ""
    time: float | None = None
    low: float | None = None
    high: float | None = None
    of_ceiling: float | None = None
    baselines: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    best: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The whole answer. line: it in one line. code: the exit code. reference: what is right here, and how precise."""

    verdict: Verdict
    line: str
    code: int
    candidate: str
    sha256: str
    form: str
    reference: str
    machine: str
    seed: int
    command: str
    checked: tuple[Checked, ...] = ()
    timed: tuple[Timed, ...] = ()
    speedup: float | None = None
    calls: Calls | None = None
    notes: tuple[str, ...] = ()
    unpromised: tuple[str, ...] = ()
