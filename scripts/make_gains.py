"""Write into the head of each kernel source what each step gained, from the committed runs.

The lines stand at the end of the head, from GAINS on. They are of one case of the op that the source is named after: of
the cases with most steps, in float32 if there are any, the middle one by the gain from the first to the last step. Half
of such cases gain more, half less. Cases with less than 100 MB of work count only where there are no others. With
--check nothing is written; the exit code is 1 if a source is old.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from committed import ROOT, Group, Runs

from harness import units
from harness.model import Case
from harness.ops import Catalogue, Op

GAINS = "// What each step gained on an "
FIRST = "float32"
LIBRARY = "eager"
LARGE = 100e6


def measured(op: Op, runs: Runs) -> Group | None:
    """The case whose figures stand in the source; None if no committed run has one."""
    found = [group for group in runs.groups.values() if group.name.startswith(f"{op.name}/") and steps(op, group)]
    for fits in (_is_plain, lambda group: len(steps(op, group)), _has_torch, _is_float32, _is_large):
        best = max(map(fits, found), default=0)
        found = [group for group in found if fits(group) == best]
    found.sort(key=lambda group: (_gain(op, group), group.name))
    return found[len(found) // 2] if found else None


def _case(group: Group) -> Case:
    return next(iter(group.results.values())).case


def _is_plain(group: Group) -> bool:
    """Whether one GPU measured it, with nothing in the L2."""
    return _case(group).world == 1 and _case(group).cache == "cold"


def _has_torch(group: Group) -> bool:
    return group.value(LIBRARY, "time") is not None


def _is_float32(group: Group) -> bool:
    return _case(group).dtype == FIRST


def _is_large(group: Group) -> bool:
    """Whether its time says more about the kernel than about the launch."""
    last = list(group.results)[-1]
    return sum(group.value(last, metric) or 0.0 for metric in ("read_bytes", "written_bytes")) >= LARGE


def _gain(op: Op, group: Group) -> float:
    """The speed of the last step over the first one, or over torch where there is one step."""
    own = steps(op, group)
    first = own[0] if len(own) > 1 else LIBRARY
    return (group.value(first, "time") or 0.0) / (group.value(own[-1], "time") or 1.0)


def steps(op: Op, group: Group) -> list[str]:
    """The variants with kernels of ours that have a time, in the op's order."""
    own = (name for name, variant in op.variants.items() if not variant.is_library)
    return [name for name in own if group.value(name, "time")]


def lines(op: Op, group: Group) -> Iterator[str]:
    """The comment: a line for torch, and a line for each step."""
    case = _case(group)
    what = " ".join(filter(None, [case.dtype, case.shape_text, case.choices_text]))
    yield f"{GAINS}{group.run.header.machine.name} (reports/h200/{group.folder}):"
    yield f"// {what}"
    named = [name for name in (LIBRARY, *steps(op, group)) if group.value(name, "time")]
    width, before = max(map(len, named)), ""
    for name in named:
        ceiling = group.value(name, "of_ceiling")
        found = [f"{name:{width}}", f"{units.seconds(group.value(name, 'time') or 0.0):>9}"]
        found += [f"{units.percent(ceiling):>6} of ceiling"] if ceiling else []
        if before:
            gain = (group.value(before, "time") or 0.0) / (group.value(name, "time") or 1.0)
            found.append(f"{gain:.2f}x the speed of {before}")
        yield f"//   {'  '.join(found)}"
        before = name


def written(text: str, op: Op, runs: Runs) -> str:
    """The source with today's figures."""
    every = text.split("\n")
    end = next(number for number, line in enumerate(every) if not line.startswith("//"))
    head, rest = every[:end], every[end:]
    start = next((number for number, line in enumerate(head) if line.startswith(GAINS)), None)
    head = head[: start - 1] if start else head  # with the empty line before
    group = measured(op, runs)
    return "\n".join([*head, *(["//", *lines(op, group)] if group else []), *rest])


def main(*, check: bool) -> int:
    """Write the sources, or tell which are old."""
    runs, old = Runs(), 0
    for op in Catalogue().values():
        file = next((ROOT / "kernels").glob(f"*/{op.name}.cu"), None)
        if file is None:
            continue
        text = file.read_text(encoding="utf-8")
        new = written(text, op, runs)
        if new != text:
            old += 1
            print(f"{file.relative_to(ROOT)}: {'old' if check else 'written'}")
            if not check:
                file.write_text(new, encoding="utf-8")
    return int(check and old > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a source is old")
    sys.exit(main(check=parser.parse_args().check))
