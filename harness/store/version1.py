"""Records of version 1 (harness 0.1.0) as records of version 2, before they are validated: JSON objects in and out.

Stored runs of schema 1, and measuring processes of a revision with protocol 1, have such records. What differs:

- A case had sizes only, and options that aren't sizes were sizes too: `L` of batch norm (0 or 1) is now the choice
  `layout`, `P` of dropout (percent) is now the choice `p` (a share).
- Operations had no type, and `traffic` repeated the fields of `work`.
- A machine had one device, whose facts stood beside those of the host.
- `limits` were called `ceilings` and held streams only. The header had a hash of all sources, `source`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.model.case import written

Json = dict[str, Any]

_DEVICE = (
    "memory_bytes", "cache_bytes", "compute_capability", "multiprocessors",
    "max_sm_clock_hz", "max_memory_clock_hz", "power_limit_w",
)  # fmt: skip
"""Facts of a machine of version 1 that are now those of its device; the name, which is there too, is still `name`."""


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A symbol of version 1 and the choice that took its place. `to_size` gives None for a value that had no size."""

    symbol: str
    choice: str
    to_value: Callable[[int], str | float]
    to_size: Callable[[Any], int | None]


_LAYOUTS = ("nchw", "nhwc")


def _layout_size(layout: str) -> int | None:
    return _LAYOUTS.index(layout) if layout in _LAYOUTS else None


def _percent(share: float) -> int | None:
    percent = round(100 * share)
    return percent if abs(100 * share - percent) < 1e-9 else None


_LAYOUT = _Renamed("L", "layout", lambda size: _LAYOUTS[size], _layout_size)
_SHARE = _Renamed("P", "p", lambda percent: percent / 100, _percent)
_RENAMED = {
    **dict.fromkeys(("bn_add_relu", "bn_add_relu_grad"), _LAYOUT),
    **dict.fromkeys(("dropout", "dropout_add", "dropout_grad", "bias_dropout_residual", "random_mask"), _SHARE),
}
"""The renamed symbol of each op. It was the last symbol of the op's shape."""


def upgrade_header(header: Json) -> Json:
    """The content of `run.json`, whose `schema` stays 1. Raises ValueError if it isn't a header of version 1."""
    return _checked(_header, header)


def upgrade_measurement(measurement: Json) -> Json:
    """A line of `results.jsonl`. Raises ValueError if it isn't a measurement of version 1."""
    return _checked(_measurement, measurement)


def upgrade_job(job: Json) -> Json:
    """A job that a measuring process gets. Raises ValueError if it isn't a job of version 1."""
    return _checked(lambda old: {"case": {**_case(old["case"]), "world": old["ranks"]}, "timing": old["timing"]}, job)


def upgrade_id(text: str) -> str:
    """The id or the group of a case: '.../N656-L1/hot' of batch norm becomes '.../N656/layout=nhwc/hot'."""
    return _pattern(text.partition("/")[0], text)


def downgrade_case(case: Json) -> Json | None:
    """A case of version 2 as one of version 1, without the number of devices; None if version 1 can't express it."""
    old = {key: value for key, value in case.items() if key not in ("choices", "world")}
    renamed = _RENAMED.get(case["op"])
    choices = dict(case["choices"])
    if renamed and renamed.choice in choices:
        size = renamed.to_size(choices.pop(renamed.choice))
        if size is None:
            return None
        old["shape"] = [*case["shape"], [renamed.symbol, size]]
    return None if choices else old


def _checked(upgrade: Callable[[Json], Json], old: Any) -> Json:
    """What `upgrade` makes of a record; ValueError where the record lacks something or has another form."""
    try:
        return upgrade(old)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"isn't a record of version 1: {type(error).__name__}: {error}") from error


def _header(old: Json) -> Json:
    new = {key: value for key, value in old.items() if key not in ("source", "ceilings")}
    ceilings = old.get("ceilings")
    return {
        **new,
        "machine": _machine(old["machine"]),
        "scenarios": [_scenario(scenario) for scenario in old["scenarios"]],
        "limits": ceilings and {"points": ceilings["points"], "end": ceilings.get("end", [])},
    }


def _machine(old: Json) -> Json:
    host = {key: value for key, value in old.items() if key not in ("name", *_DEVICE)}
    device = {"name": old["name"], **{key: old[key] for key in _DEVICE if key in old}}
    return {**host, "devices": [device]}


def _scenario(old: Json) -> Json:
    """A scenario. The patterns of its claims and floors are upgraded like the ids that they have to match."""
    patterns = {
        key: [{**entry, "where": _pattern(old["op"], entry.get("where", "*"))} for entry in old.get(key, ())]
        for key in ("expect", "claims")
    }
    return {**old, **patterns, "cases": [upgrade_id(case) for case in old["cases"]], "roles": []}


def _measurement(old: Json) -> Json:
    work, traffic = old.get("work"), old.get("traffic")
    return {
        **old,
        "case": _case(old["case"]),
        "work": work and _work(work),
        "traffic": traffic and {"read": traffic["read"], "written": traffic["written"]},
    }


def _work(old: Json) -> Json:
    """The work of a call. Version 1 had one number of operations for all types; all ops that had any used float32."""
    return {**old, "flops": [["float32", old["flops"]]] if old.get("flops") else []}


def _case(old: Json) -> Json:
    renamed = _RENAMED.get(old["op"])
    options = [size for symbol, size in old["shape"] if renamed and symbol == renamed.symbol]
    if not renamed or not options:
        return {**old, "choices": []}
    shape = [pair for pair in old["shape"] if pair[0] != renamed.symbol]
    return {**old, "shape": shape, "choices": [[renamed.choice, renamed.to_value(size)] for size in options]}


def _pattern(op: str, text: str) -> str:
    """An id or a pattern of ids, whose last size may have become a choice."""
    renamed = _RENAMED.get(op)
    if renamed is None:
        return text
    return re.sub(
        rf"-{renamed.symbol}(\d+)(?=/|$)",
        lambda found: f"/{renamed.choice}={written(renamed.to_value(int(found[1])))}",
        text,
    )
