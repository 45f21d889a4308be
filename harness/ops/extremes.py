"""Which extreme values the inputs of an op may have. `harness.extremes` puts them in place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import nearest, shown
from harness.ops.declarations import check_mapping, check_numbers, check_text, refusal
from harness.ops.tensors import ITEMSIZE, Tensor

KINDS = {
    "largest": "the largest number allowed, with either sign",
    "large": "normal numbers times the root of the largest number allowed",
    "smallest": "the smallest normal number, with either sign",
    "denormal": "a denormal number, with either sign",
    "zeros": "zeros, with either sign",
    "equal": "one number in the whole row",
    "outlier": "normal numbers, and the largest number allowed once",
    "lowest": "the lowest number allowed in the whole row, as a mask may have it",
    "masked": "normal numbers, and minus infinity in place of the negative ones",
    "minus_infinity": "minus infinity in the whole row",
    "infinity": "normal numbers, and infinity once",
    "nan": "normal numbers, and NaN once",
}
"""What a row of an input has, by name."""
ALL = "all"
"""In the place of a kind: no extreme values at all."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """What an op says of extreme values in its inputs of floats. Each kind is checked in each input, unless told.

    exempt: the reason, by what isn't checked: a kind ('nan'), an input ('scale'), a kind in an input ('mask.nan'), or
    'all'. largest: the largest number that an input may have, by dtype or by input, where results in float32 aren't
    those of float64 for every number; an input's own stands before its dtype's. why: the reason of `largest`. apart:
    the dimension along which an input has rows whose results don't depend on each other, by input. Otherwise the last
    dimension of an input is a row, and an input of one dimension has pieces for rows.

    Raises UsageError, with the file and line, for a name that is no kind, and for a reason that is missing.
    `refuse_unknown` does so for a name that is no input.
    """

    exempt: Mapping[str, str] = field(default_factory=dict)
    largest: Mapping[str, float] = field(default_factory=dict)
    why: str = ""
    apart: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whose = "extreme values"
        check_mapping(whose, self.exempt, "exempt", str, "{'nan': 'why NaN can't be in an input'}")
        check_mapping(whose, self.largest, "largest", (int, float), "{'float32': 2.0**60}")
        check_mapping(whose, self.apart, "apart", int, "{'x': 1}")
        check_text(whose, why=self.why)
        for name, reason in self.exempt.items():
            kind = name.partition(".")[2]
            if kind and kind not in KINDS:
                raise refusal(f"exempt of {whose} has {shown(name)}: no kind is named '{kind}'", nearest(kind, KINDS))
            if not reason:
                raise refusal(f"exempt of {whose} has no reason for {shown(name)}", "say why it can't be checked")
        for value in self.largest.values():
            check_numbers(whose, "largest", value, least=1.0)
        if bool(self.largest) != bool(self.why):
            raise refusal(
                f"{whose} have {'a limit' if self.largest else 'a reason'} alone", "give largest=... and why=..."
            )

    def refuse_unknown(self, op: str, inputs: tuple[Tensor, ...]) -> None:
        """Raise UsageError for a name that is neither a kind nor an input of the op, and for other dtypes."""
        names = [tensor.name for tensor in inputs]
        allowed = {"exempt": (ALL, *KINDS, *names), "largest": (*ITEMSIZE, *names), "apart": tuple(names)}
        used = {
            "exempt": [name.partition(".")[0] for name in self.exempt],
            "largest": list(self.largest),
            "apart": list(self.apart),
        }
        for what, given in used.items():
            for name in given:
                if name not in allowed[what]:
                    message = f"{what} of the extreme values of op '{op}' has {shown(name)}"
                    raise refusal(message, nearest(name, allowed[what]))

    def kinds_of(self, tensor: Tensor) -> tuple[str, ...]:
        """The kinds that are checked in an input."""
        if ALL in self.exempt or tensor.name in self.exempt:
            return ()
        return tuple(kind for kind in KINDS if not {kind, f"{tensor.name}.{kind}"} & self.exempt.keys())

    def largest_of(self, tensor: Tensor, dtype: str) -> float:
        """The largest number that an input may have by declaration."""
        return float(self.largest.get(tensor.name, self.largest.get(dtype, math.inf)))
