"""What a reader must know besides the numbers: the machine, what is missing, what the warnings mean."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from harness import units
from harness.model import Machine, Run, Scenario, Warning
from harness.stats import range_over_median


def machine(facts: Machine) -> list[tuple[str, str]]:
    """Labels and values, without what isn't known."""
    known = {
        "device": facts.name,
        "memory": facts.memory_bytes and units.size(facts.memory_bytes),
        "last-level cache": facts.cache_bytes and units.size(facts.cache_bytes),
        "compute capability": facts.compute_capability,
        "multiprocessors": facts.multiprocessors,
        "SM clock, at most": _megahertz(facts.max_sm_clock_hz),
        "memory clock, at most": _megahertz(facts.max_memory_clock_hz),
        "power limit": facts.power_limit_w and f"{facts.power_limit_w:.0f} W",
        "driver": facts.driver,
        "processor": facts.cpu,
        "processors": facts.cpu_count,
        "host memory": facts.host_memory_bytes and units.size(facts.host_memory_bytes),
        "system": facts.system,
        "fingerprint": facts.fingerprint,
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions),
    }
    return [(label, str(value)) for label, value in known.items() if value]


def _megahertz(clock: float | None) -> str:
    return f"{clock / 1e6:.0f} MHz" if clock else ""


def command(run: Run) -> str:
    """The command line, quoted so that it can be pasted into a shell."""
    return shlex.join(run.header.command)


def provenance(run: Run) -> str:
    """When it was measured and with which state of the sources, as a sentence."""
    header = run.header
    span = f"{header.started} to {header.finished}" if header.finished else f"{header.started}, not finished"
    git = f"git revision {header.git_revision}" if header.git_revision else "no git checkout"
    dirty = " with uncommitted changes" if header.git_dirty else ""
    return f"Measured {span}, with harness {header.harness_version or 'of unknown version'}, {git}{dirty}."


def origin(scenario: Scenario) -> str:
    """Where a scenario comes from, as a sentence."""
    rows = f"rows {', '.join(scenario.rows)}" if scenario.rows else ""
    source = "; ".join(filter(None, [scenario.source, rows]))
    return f"Scenario `{scenario.name}`, op `{scenario.op}`" + (f". Source: {source}." if source else ".")


def unmeasured(run: Run) -> int:
    """How many planned cases have no measurement, not even a failed one."""
    planned = {case for scenario in run.header.scenarios for case in scenario.cases}
    return len(planned - {m.case.id for m in run.measurements})


def outcome(run: Run) -> str:
    """How many cases ended in which way: '28 ok, 1 crashed, 1 wrong'."""
    counts = Counter(result.status for result in run.results)
    ended = [f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: item[0] != "ok")]
    missing = unmeasured(run)
    return ", ".join([*ended, *([f"{missing} not measured"] if missing else [])]) or "no case was measured"


def processes(run: Run) -> str:
    """How the processes of a repeated run agree; empty if there was one process only."""
    repeated = [result for result in run.results if len(result.medians) > 1]
    if not repeated:
        return ""
    most = max(len(result.medians) for result in repeated)
    worst = max(repeated, key=lambda result: range_over_median(result.medians))
    return (
        f"Each case was measured in {most} fresh processes. Its time is the median of their medians, and its noise "
        f"spans all of them. Their medians lie within {units.percent(range_over_median(worst.medians), 2)} of each "
        f"other, at worst in {worst.case.id}."
    )


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning once, with the number of cases that carry it."""

    warning: Warning
    cases: int
    example: str


def notices(run: Run) -> list[Notice]:
    """Every code of a warning once, the most frequent first; the first case that has it is the example."""
    found: dict[str, list[tuple[Warning, str]]] = {}
    for result in run.results:
        for warning in result.warnings:
            found.setdefault(warning.code, []).append((warning, result.case.id))
    all_of_them = [Notice(cases[0][0], len(cases), cases[0][1]) for cases in found.values()]
    return sorted(all_of_them, key=lambda notice: -notice.cases)
