"""What a reader must know besides the numbers: the machine, missing cases, the code's age, what the warnings mean."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping

from harness import units
from harness.model import DeviceFacts, Machine, Result, Run, Scenario, Warning
from harness.ops.codes import Codes
from harness.report.tree import Facts, Note
from harness.stats import range_over_median, relative_width
from harness.units import plural

DIGEST = 12
"""Characters of a hash that are shown: enough to tell two apart."""
_MOST_SCENARIOS = 5


def title(run: Run) -> str:
    """The names of the run's scenarios, as many as a line has room for; scenarios of one file have the file's name."""
    names = list(dict.fromkeys(scenario.name.partition(".")[0] for scenario in run.header.scenarios))
    more = len(names) - _MOST_SCENARIOS
    return (", ".join(names[:_MOST_SCENARIOS]) or run.header.name) + (f" and {more} more" if more > 0 else "")


def machine(facts: Machine) -> Facts:
    """What is known of the machine. Devices that differ are listed one by one."""
    differ = len(set(facts.devices)) > 1
    each = "each device: " if len(facts.devices) > 1 else ""
    known: dict[str, object] = {"device": facts.name}
    for number, device in enumerate(facts.devices if differ else facts.devices[:1]):
        place = f"device {number}: " if differ else each
        known |= {f"{place}{label}": value for label, value in _device(device, differ).items()}
    known |= {
        "driver": facts.driver,
        "processor": facts.cpu,
        "processors": facts.cpu_count,
        "host memory": facts.host_memory_bytes and units.size(facts.host_memory_bytes),
        "system": facts.system,
        "fingerprint": facts.fingerprint,
        "versions": ", ".join(f"{name} {version}" for name, version in facts.versions),
    }
    return Facts(tuple((label, str(value)) for label, value in known.items() if value))


def _device(device: DeviceFacts, named: bool) -> dict[str, object]:
    return {
        "name": device.name if named else "",
        "memory": device.memory_bytes and units.size(device.memory_bytes),
        "last-level cache": device.cache_bytes and units.size(device.cache_bytes),
        "compute capability": device.compute_capability,
        "multiprocessors": device.multiprocessors,
        "SM clock, at most": _megahertz(device.max_sm_clock_hz),
        "memory clock, at most": _megahertz(device.max_memory_clock_hz),
        "power limit": device.power_limit_w and f"{device.power_limit_w:.0f} W",
    }


def _megahertz(clock: float | None) -> str:
    return f"{clock / 1e6:.0f} MHz" if clock else ""


def command(run: Run) -> str:
    """The command line, quoted so that it can be pasted into a shell."""
    return shlex.join(run.header.command)


def provenance(run: Run) -> str:
    """When the run was measured and with which state of the sources, as a sentence."""
    header = run.header
    span = f"{header.started} to {header.finished}" if header.finished else f"{header.started}, not finished"
    git = f"git revision {header.git_revision}" if header.git_revision else "no git checkout"
    dirty = " with uncommitted changes" if header.git_dirty else ""
    return f"Measured {span}, with harness {header.harness_version or 'of unknown version'}, {git}{dirty}."


def origin(scenario: Scenario) -> str:
    """The name of a scenario, its op and its source, as a sentence."""
    rows = f"rows {', '.join(scenario.rows)}" if scenario.rows else ""
    source = "; ".join(filter(None, [scenario.source, rows]))
    return f"Scenario {scenario.name}, op {scenario.op}" + (f". Source: {source}." if source else ".")


def unmeasured(run: Run) -> int:
    """How many planned cases have no measurement, not even a failed one."""
    planned = {case for scenario in run.header.scenarios for case in scenario.cases}
    return len(planned - {m.case.id for m in run.measurements})


def outcome(run: Run) -> str:
    """How many cases ended in which way: '28 ok, 1 crashed, 1 wrong'."""
    counts = Counter(result.status for result in run.results)
    ended = [
        f"{count} {status.replace('_', ' ')}"
        for status, count in sorted(counts.items(), key=lambda item: item[0] != "ok")
    ]
    missing = unmeasured(run)
    return ", ".join([*ended, *([f"{missing} not measured"] if missing else [])]) or "no case was measured"


def processes(run: Run) -> str:
    """How the processes of a repeated run agree; empty if there was one process only."""
    repeated = [result for result in run.results if len(result.medians) > 1]
    if not repeated:
        return ""
    counts = {len(result.medians) for result in run.results if result.medians}
    # A run that was stopped has cases of fewer processes than other cases.
    count = f"{max(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    worst = max(repeated, key=lambda result: range_over_median(result.medians))
    return (
        f"Each case was measured in {count} fresh processes. Its time is the median of their medians, and its noise "
        f"spans all of them. Their medians lie within {units.percent(range_over_median(worst.medians), 2)} of each "
        f"other, at worst in {worst.case.id}."
    )


def warnings(run: Run) -> list[Note]:
    """Every code of a warning once, the most frequent first; the first case that has it is the example.

    Of noise the worst case is the example, since its advice holds for all others, too.
    """
    found: dict[str, list[tuple[Warning, Result]]] = defaultdict(list)
    for result in run.results:
        for warning in result.warnings:
            found[warning.code].append((warning, result))
    notes = []
    for code, told in sorted(found.items(), key=lambda item: -len(item[1])):
        warning, result = max(told, key=lambda each: _noise(each[1])) if code == "noisy" else told[0]
        example = _how_often(code, len(told))
        notes.append(Note(warning.message, "warning", example, result.case.id, warning.advice))
    return notes


def _noise(result: Result) -> float:
    """The relative width of the widest interval of a process."""
    return max((relative_width(m.samples) for m in result.measurements if m.samples), default=0.0)


def _how_often(code: str, cases: int) -> str:
    return f"{code} in" if cases == 1 else f"{code} in {cases} cases, such as"


def stale(run: Run, current: Codes) -> list[str]:
    """Sentences about results that were measured with other code than the present; none if all have the same code.

    current: the present code of each variant. A result of a variant that isn't among them can't be checked.
    """
    if run.measurements and all(m.code is None for m in run.measurements):
        return ["This run doesn't say which code measured each result. A new run says it."]
    older: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    unknown: dict[str, set[str]] = defaultdict(set)
    for m in run.measurements:
        now = current.get((m.case.op, m.case.variant))
        if m.code is None or now is None:
            unknown[m.case.op].add(m.case.id)
        elif m.code.digest != now.digest:
            older[m.case.op, m.code.digest, now.digest].add(m.case.id)
    return [*_older(older), *_unknown(unknown)]


def _older(older: Mapping[tuple[str, str, str], set[str]]) -> list[str]:
    if not older:
        return []
    ops = [f"{op} (code {digest[:DIGEST]}, now {now[:DIGEST]})" for op, digest, now in sorted(older)]
    count = len(set().union(*older.values()))
    verb = "was" if count == 1 else "were"
    return [f"{plural(count, 'result')} {verb} measured with older code: {', '.join(ops)}."]


def _unknown(unknown: Mapping[str, set[str]]) -> list[str]:
    if not unknown:
        return []
    results = plural(sum(map(len, unknown.values())), "result")
    return [f"{results} can't be checked for older code: the code of {', '.join(sorted(unknown))} isn't here."]
