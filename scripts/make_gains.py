"""Write into the head of each kernel source what each step gained, from the committed runs.

The lines stand at the end of the head, from GAINS on. They are of one case of the op that the source is named after:
in float32 if the op has it, the case with most variants, and of these the one that moves most bytes. With --check
nothing is written; the exit code is 1 if a source is old.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from committed import ROOT, Group, Runs

from harness import units
from harness.ops import Catalogue, Op

GAINS = "// What each step gained on an "
FIRST = "float32"
LIBRARY = "eager"


def measured(op: Op, runs: Runs) -> Group | None:
    """The case whose figures stand in the source; None if no committed run has one."""
    groups = [group for group in runs.groups.values() if group.name.startswith(f"{op.name}/")]

    def rank(group: Group) -> tuple[bool, int, float]:
        case = next(iter(group.results.values())).case
        alone = case.world == 1 and case.cache == "cold"
        return case.dtype == FIRST and alone, len(steps(op, group)), group.value(LIBRARY, "time") or 0.0

    return max((group for group in groups if steps(op, group)), key=rank, default=None)


def steps(op: Op, group: Group) -> list[str]:
    """The variants with kernels of ours that have a time, in the op's order."""
    own = (name for name, variant in op.variants.items() if not variant.is_library)
    return [name for name in own if group.value(name, "time")]


def lines(op: Op, group: Group) -> Iterator[str]:
    """The comment: a line for torch, and a line for each step."""
    case = next(iter(group.results.values())).case
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
