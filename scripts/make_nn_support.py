"""Write harness/collection/nn/SUPPORT.md: what torch offers, and what harness.nn makes of it.

It is made from tests/collection/nn/support.yaml, which tests hold to what happens. With --check nothing is written, and
the exit code is 1 if the page isn't as it would be written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from committed import ROOT
from tables import table

PAGE = ROOT / "harness" / "collection" / "nn" / "SUPPORT.md"
TABLE = ROOT / "tests" / "collection" / "nn" / "support.yaml"
_ESCAPED = re.compile(r"\\(?=\W)")
HEAD = """# What harness.nn supports

The table says who computes a call. **ours**: our kernel, where there is one for the tensor's type and sizes, on an
NVIDIA GPU. **torch**: torch's functions, with the same result. **error**: the call raises an error, which stands below
the table. Where no kernel can run, as on a CPU, torch computes what is **ours** here. Torch always computes the
derivatives of gradients. Whatever isn't an error is right: tests compare results, gradients and derivatives with
torch's in float64."""
FOOT = "`python scripts/make_nn_support.py` makes this page; tests hold each entry to what happens."


def page(register: Mapping[str, Any]) -> str:
    """The page."""
    parts = [HEAD, *functions(register["functions"]), *differences(register["differences"])]
    parts += ["## Modules", *tried(register["modules"], "a module of harness.nn")]
    parts += ["## AdamW", *tried(register["adamw"], "AdamW of harness.nn")]
    return "\n\n".join([*parts, FOOT]) + "\n"


def functions(rows: Mapping[str, Any]) -> Iterator[str]:
    """The table of functions, and its errors."""
    from tests.collection.nn.examples import EXAMPLES

    names = [*EXAMPLES]
    cells = [[row["does"], *(_word(_outcome(row, name)) for name in names)] for row in rows.values()]
    yield "## Functions"
    yield "\n".join(table(["what is tried", *(f"`{name}`" for name in names)], iter(cells), left=len(names) + 1))
    yield "Errors:"
    yield "\n".join(_errors(rows, names))


def _outcome(row: Mapping[str, Any], name: str) -> str:
    return str(row.get("but", {}).get(name, row["outcome"]))


def _word(outcome: str) -> str:
    return {"kernel": "ours", "none": ""}.get(outcome, outcome.partition(":")[0])


def _errors(rows: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    """A line for each error: what is tried, which functions, what it says."""
    for row in rows.values():
        found: dict[str, list[str]] = {}
        for name in names:
            outcome = _outcome(row, name)
            if _word(outcome) == "error":
                found.setdefault(_said(outcome), []).append(f"`{name}`")
        yield from (f"- {row['does']}, {', '.join(those)}: {said}" for said, those in found.items())


def _said(outcome: str) -> str:
    """What an error says, from the expression that it matches."""
    text = outcome.removeprefix("error: ").replace(".*", "...")
    return f"`{_ESCAPED.sub('', text)}`"


def differences(entries: Mapping[str, str]) -> Iterator[str]:
    """How calls differ from torch's."""
    yield "## Calls that differ from torch.nn.functional"
    yield "\n".join(f"- `{name}`: {text.strip()}" for name, text in entries.items())


def tried(rows: Mapping[str, Any], what: str) -> Iterator[str]:
    """A table of what is tried with one thing."""
    cells = (
        [row["does"], _said(row["outcome"]) if row["outcome"].startswith("error") else row["outcome"]]
        for row in rows.values()
    )
    yield "\n".join(table(["what is tried", what], cells, left=2))


def main() -> None:
    """Write the page, or compare it."""
    made = page(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != made:
        sys.exit(f"{PAGE.relative_to(ROOT)} isn't as the tests have it; run scripts/make_nn_support.py")


if __name__ == "__main__":
    main()
