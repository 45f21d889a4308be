"""`time` and `race`: a function's time, and several functions' times in turns, in this process."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from harness import devices, limits, measure, metrics, runner, stats, units
from harness.api.advised import advised
from harness.api.called import Bytes, Called, called, named
from harness.errors import HarnessError, MachineError, UsageError, WrongResultError, nearest
from harness.interleaved import Ratio, interleaved
from harness.model import Job, Limits, Measurement, Timing, Warning

BUDGET = 2.0
"""Seconds of sampling at most, unless told."""
_CORRECT = "correct it; a wrong result has no time"
_OF_COMMANDS = (
    (r", or ask for less: --precision \S+", ""),
    (r"--max-time ", "budget="),
    (r"say 'cache: hot'", "time a closure"),
)
"""What the advice of a warning says to users of commands, and what it says here."""


@dataclass(frozen=True)
class Time:
    """The time of a call, in microseconds.

    name: the function's. measurement: all that was measured of it, in SI units.
    """

    name: str
    measurement: Measurement
    cache: str
    knows_bytes: bool = True

    @property
    def us(self) -> float:
        """Median microseconds of a call: of the device, or of the host's clock on a CPU."""
        return 1e6 * self.seconds

    @property
    def seconds(self) -> float:
        """Median seconds of a call."""
        return statistics.median(self.measurement.samples)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of `us`, in microseconds: of the median, by ranks."""
        low, high = stats.median_interval(self.measurement.samples) or (0.0, float("inf"))
        return 1e6 * low, 1e6 * high

    @property
    def samples(self) -> tuple[float, ...]:
        """Microseconds of a call, each the mean of the calls of one sample."""
        return tuple(1e6 * seconds for seconds in self.measurement.samples)

    @property
    def call_us(self) -> float:
        """Median microseconds of a call as a loop of the host sees it, without a graph."""
        return 1e6 * (self.measurement.call_time or 0.0)

    @property
    def timer(self) -> str:
        """How it was timed: 'graph', 'launch', 'steady' or 'host'; harness/README.md says what they mean."""
        return self.measurement.timer

    @property
    def warnings(self) -> tuple[Warning, ...]:
        """What a reader of the time must know, each with a `code`, a `message`, and `advice`."""
        return self.measurement.warnings

    @property
    def bytes(self) -> int:
        """Bytes that a call has to read and write: as told, else those of the arguments and results.

        Raises UsageError for a closure whose bytes weren't told.
        """
        if not self.knows_bytes or self.measurement.work is None:
            raise UsageError(f"the bytes of {self.name} aren't known: it is a closure", "give bytes= of a call")
        return self.measurement.work.moved

    @property
    def gb_per_s(self) -> float:
        """Effective bandwidth in GB/s (10^9 bytes a second): `bytes` over the time. Raises as `bytes` does."""
        return 1e-9 * self.bytes / self.seconds

    @property
    def of_ceiling(self) -> float:
        """The least time in which this machine streams as many bytes, over the time: a share, 1 is 100%.

        What the machine can do is measured when it is first asked for, which takes seconds, and is kept for later
        processes. Operations aren't counted. Raises as `bytes` does, and WrongResultError where the share is
        impossible: above 120%, on a GPU.
        """
        if self.bytes == 0:
            raise UsageError(f"{self.name} moves no bytes, so no ceiling is known", "give bytes= of a call")
        judged = runner.judged(self.measurement, machine_limits(self.measurement.case.device))
        if judged.status != "ok":
            raise WrongResultError(f"{self.name}: {judged.error}")
        subject = metrics.Subject.of(judged, machine_limits(self.measurement.case.device))
        share = metrics.METRICS["of_ceiling"].value(subject)
        if share is None:
            message = "no streams could be measured on this machine, so no ceiling is known"
            raise MachineError(message, "'harness peak' measures them again, and says what fails")
        return share

    def __repr__(self) -> str:
        low, high = (units.significant(bound) for bound in self.interval)
        codes = "".join(f"  [{warning.code}]" for warning in self.warnings)
        many = f"n={len(self.samples)}"
        how = f"{self.timer}, {self.cache}"
        return f"{self.name}  {units.significant(self.us)} us [{low}, {high}]  {many}  {how}{codes}"

    def _repr_html_(self) -> str:
        from harness.api import html

        return html.of_times([self])


class Raced(Time):
    """The time of a call in a race, where it can be compared with the other times."""

    race: Race

    def over(self, other: str | None = None) -> Ratio:
        """How many times as fast it is as another function of the race, the baseline unless told; above 1 is faster."""
        return self.race.ratio(self.name, other or self.race.baseline)


class Race(Mapping[str, Raced]):
    """The times of functions that were timed in turns, by name."""

    def __init__(self, baseline: str, times: list[Raced], rounds: Mapping[str, tuple[float, ...]]) -> None:
        """Rounds: seconds of a call of each function in each round."""
        self.baseline, self.rounds = baseline, rounds
        self._times = {time.name: time for time in times}
        for each in times:
            object.__setattr__(each, "race", self)

    def ratio(self, name: str, other: str) -> Ratio:
        """How many times as fast the function `name` is as `other`, round by round."""
        for each in (name, other):
            if each not in self.rounds:
                raise UsageError(f"no function of the race is named '{each}'", nearest(each, self.rounds))
        return Ratio.of(self.rounds[other], self.rounds[name])

    def __getitem__(self, name: str) -> Raced:
        if name not in self._times:
            raise KeyError(f"no function of the race is named '{name}': {nearest(name, self._times)}")
        return self._times[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def __repr__(self) -> str:
        lines = [f"{time!r}{self._compared(time)}" for time in self.values()]
        return "\n".join(lines)

    def _compared(self, time: Raced) -> str:
        return "" if time.name == self.baseline else f"\n    over {self.baseline}: {time.over()}"

    def _repr_html_(self) -> str:
        from harness.api import html

        return html.of_times([*self.values()], self)


@advised
def time(  # noqa: PLR0913 - each says something else of one call
    function: Callable[..., object],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    bytes: Bytes = None,
    check: Callable[..., object] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    budget: float = BUDGET,
    name: str | None = None,
) -> Time:
    """Time a call of `function(*args, **kwargs)` on the device of its arguments.

    The tensors among the arguments, also in lists, tuples and dicts, are copied into several sets of buffers, which are
    together larger than the cache, so the data of a call is cold. The other sets hold floating-point numbers that are
    scaled by a number between 1/2 and 1. A GPU's calls are captured into a CUDA graph. A function without tensors among
    its arguments is a closure: what it reads can't be rotated, so the L2 is flushed before each call, which is timed
    alone, and a warning says so. Calls of the first seconds, which load and compile, aren't timed.

    kwargs: the function's keyword arguments, in a dict: `time(torch.softmax, x, kwargs={"dim": -1})`.
    bytes: that a call has to read and write, or a tuple of both; unless told, of all arguments and results, each once.
    check: a function of the same arguments that gives what is right, in higher precision if you like:
    `check=lambda x: torch.softmax(x.double(), -1)`. Without it, calls that are timed must give what a call alone gives.
    rtol, atol: relative and absolute error allowed; unless told, eight units in the last place. budget: seconds of
    sampling at most. It ends before if the 95% interval of the median is 0.2% wide. name: how it is printed.

    Raises WrongResultError for a wrong result, UsageError for arguments that can't be timed, and what the function
    raises. An error of the GPU leaves this process without one: `harness.run` measures in processes that may die.
    """
    own = name or named(function)
    made = called(
        {own: function}, args, kwargs or {}, reference=check, usual=own, bytes=bytes, rtol=rtol, atol=atol, name=own
    )
    with made.in_use():
        measurement = measure.measure(Job(made.cases[0], _timing(budget)), made.op, made.device)
    return Time(own, _right(own, measurement, made), _cache(measurement, made), made.knows_bytes)


@advised
def race(  # noqa: PLR0913 - as above
    functions: Mapping[str, Callable[..., object]],
    *args: Any,
    baseline: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    bytes: Bytes = None,
    check: Callable[..., object] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    budget: float = BUDGET,
) -> Race:
    """Time functions of the same arguments in turns, so that what disturbs one round disturbs all of them.

    baseline: the function that `over()` compares with; the first unless told. Without `check` its results are right.
    budget: seconds of sampling of each function, at most. All else is as for `time`. Raises as `time` does.
    """
    by_name = 'give them by name: race({"ours": f, "eager": g}, x)'
    if not isinstance(functions, Mapping):
        raise UsageError(f"the functions of a race are a {type(functions).__name__}, not a dict", by_name)
    if not functions:
        raise UsageError("there is no function to race", by_name)
    first = next(iter(functions)) if baseline is None else baseline
    if first not in functions:
        raise UsageError(f"no function is named '{first}'", nearest(first, functions))
    ordered = {first: functions[first], **functions}
    made = called(
        ordered, args, kwargs or {}, reference=check, usual=first, bytes=bytes, rtol=rtol, atol=atol, name="race"
    )
    with made.in_use():
        measurements, rounds = interleaved(made.cases, made.op, made.device, _timing(budget))
    found = dict(zip(ordered, measurements, strict=True))
    advice = _CORRECT if check else f"what '{first}' gives counts as right; check= gives what else is right"
    times = [
        Raced(name, _right(name, found[name], made, advice), _cache(found[name], made), made.knows_bytes)
        for name in functions
    ]
    return Race(first, times, {name: rounds[found[name].case.variant] for name in functions})


@cache
def machine_limits(kind: str) -> Limits:
    """What this machine's memory can do, once a process: kept limits where they still hold, else measured now."""
    return limits.ready(devices.kinds()[kind], limits.Needs())


def _timing(budget: float) -> Timing:
    if not budget > 0:
        raise UsageError(f"budget={budget!r}", "give seconds of sampling, such as 2.0")
    return Timing(max_time=budget)


def _right(name: str, measurement: Measurement, made: Called, advice: str = _CORRECT) -> Measurement:
    """The measurement of a call, with notes on its arguments. Raises WrongResultError with advice for a wrong one."""
    if measurement.status == "ok":
        return replace(measurement, warnings=(*made.notes, *map(_for_a_call, measurement.warnings)))
    if measurement.status == "wrong":
        raise WrongResultError(f"{name}: {measurement.error}", advice)
    kinds: dict[str, type[HarnessError]] = {"out_of_memory": MachineError}
    raise kinds.get(measurement.status, UsageError)(f"{name}: {measurement.error}")


def _for_a_call(warning: Warning) -> Warning:
    """The warning with advice for who calls a function, not a command."""
    advice = warning.advice
    for pattern, here in _OF_COMMANDS:
        advice = re.sub(pattern, here, advice)
    return replace(warning, advice=advice)


def _cache(measurement: Measurement, made: Called) -> str:
    """What a call finds in the cache, in words."""
    if measurement.timer == "launch":
        return "L2 flushed"
    if not made.has_inputs:
        return "warm"
    return "partly cold" if any(each.code == "few-sets" for each in measurement.warnings) else "cold"
