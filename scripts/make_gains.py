"""Write into the head of each kernel source what each step does, and what it gained in the committed runs.

The lines stand at the end of the head, from GAINS on. They are of one case of the op that the source is named after: of
the cases with 100 MB of work or more, if there are any, those with most steps, in float32 if there are any; of these
cases the middle one by the gain from the first to the last step. Half of such cases gain more, half less. A case is of
its newest run with most steps. With --check nothing is written; the exit code is 1 if a source is old.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator

from committed import ROOT, Group, Runs

from harness import units
from harness.model import Case
from harness.ops import Catalogue, Op

GAINS = "// What each step gained on an "
FIRST = "float32"
LIBRARY = "eager"
LARGE = 100e6
WIDTH = 120


def measured(op: Op, runs: Runs) -> Group | None:
    """The case whose figures stand in the source; None if no committed run has one."""
    found = list(_groups(op, runs).values())
    for fits in (_is_plain, _is_large, lambda group: len(steps(op, group)), _has_torch, _is_float32):
        best = max(map(fits, found), default=0)
        found = [group for group in found if fits(group) == best]
    found.sort(key=lambda group: (_gain(op, group), group.name))
    return found[len(found) // 2] if found else None


def _groups(op: Op, runs: Runs) -> dict[str, Group]:
    """The cases with steps, each of its newest run with most steps: newer runs often lack the first steps."""
    found: dict[str, Group] = {}
    for group in runs.every:
        own = steps(op, group) if group.name.startswith(f"{op.name}/") else []
        if own and (group.name not in found or len(own) >= len(steps(op, found[group.name]))):
            found[group.name] = group
    return found


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
    return [name for name in _own(op) if group.value(name, "time")]


def _own(op: Op) -> list[str]:
    return [name for name, variant in op.variants.items() if not variant.is_library]


def lines(op: Op, group: Group) -> Iterator[str]:
    """The comment: the work of the case, and torch and each step with what it does and what was measured."""
    case, machine = _case(group), group.run.header.machine.name
    what = " ".join(filter(None, [case.dtype, case.shape_text, case.choices_text]))
    told = f"{GAINS}{machine} (reports/h200/{group.folder}), {what}."
    yield from textwrap.wrap(told, WIDTH, subsequent_indent="// ", break_on_hyphens=False)
    yield from filter(None, [_least(group)])
    before = ""
    for name in (LIBRARY, *_own(op)):
        summary = "PyTorch" if name == LIBRARY else op.variants[name].summary
        time = group.value(name, "time")
        if time or name != LIBRARY:
            yield from textwrap.wrap(f"{name}: {summary}", WIDTH, initial_indent="//   ", subsequent_indent="//     ")
        if time:
            yield f"//       {'  '.join(_measured(group, name, before))}"
            before = name


def _least(group: Group) -> str:
    """What moves at least, and how long that takes at best; empty where the op has no ceiling."""
    subject = group.against_limits[list(group.results)[-1]]
    if not subject.work or not subject.best:
        return ""
    read, wrote = units.size(subject.work.read), units.size(subject.work.written)
    who = "the arithmetic" if subject.bound_by_compute else "memory"
    return f"// At least {read} are read and {wrote} written. The ceiling is {units.seconds(subject.best)}, by {who}."


def _measured(group: Group, name: str, before: str) -> Iterator[str]:
    time, ceiling, moved = (group.value(name, metric) for metric in ("time", "of_ceiling", "moved_bytes"))
    yield f"{units.seconds(time or 0.0):>8}"
    if ceiling:
        yield f"{units.percent(ceiling):>6} of ceiling"
    if moved and name != LIBRARY:  # nobody counts what PyTorch's kernels move
        yield f"moves {units.size(moved):>8}"
    if before:
        yield f"{group.value(name, 'speedup', before) or 0.0:.2f}x the speed of {before}"


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
