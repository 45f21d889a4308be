"""What can't be true of a stored run: a time of zero seconds, a machine without a device, a number without an end.

Whatever reads a run divides by its times and takes logarithms of its sizes, so such a run is refused where it is read.
Each function gives what is wrong, in words, or "" if nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from harness.model import Attachment, Case, Header, Limits, Machine, Measurement, StreamPoint

_SHORTEST, _LONGEST = 1e-15, 1e9
"""Seconds that a call may take: a millionth of a nanosecond, and 30 years."""
_LARGEST = 2.0**100
_DEEPEST = 100  # ranges around a range; a row of a table has a sign for each
"""The largest number: of bytes, of operations, of hertz."""
_LARGEST_STREAM = 2**50
"""Bytes that a stream moves. Sizes of larger streams could be one number as floats, and no line leads through them."""
_LARGEST_WORLD = 2**20
_NOT_WHOLE = "negative, or 2**100 or more"
_ALLOWED = f"allowed are {_SHORTEST:g} s to {_LONGEST:g} s"


def of_measurement(found: Measurement) -> str:
    """What can't be true of the measurement of a case, in the numbers that something is computed from."""
    # 20,000 results come by here, so all looks at them are short. A sum is no number if one of its terms is none.
    for samples in (found.samples, found.call_samples):
        if samples and not (min(samples) >= _SHORTEST and sum(samples) <= _LONGEST):
            return f"a call takes {_worst(samples)!r} s; {_ALLOWED}"
    if not found.samples and found.status == "ok":
        return "the status is 'ok', and there is no sample"
    if found.facts and (problem := _first_endless(found.facts)):
        return problem
    return _of_counts(found) or _of_case(found.case)


def of_header(header: Header) -> str:
    """What can't be true of a header."""
    if header.repeat < 1 or header.jobs < 0:
        return f"repeat is {header.repeat} and jobs {header.jobs}; allowed are 1 or more, and 0 or more"
    return (_of_machine(header.machine) or (header.limits and of_limits(header.limits)) or _endless(header)) or ""


def of_limits(limits: Limits) -> str:
    """What can't be true of the limits of a machine."""
    for point in (*limits.points, *limits.end):
        if problem := _of_stream(point):
            return problem
    for product in limits.compute:
        if not 1 <= product.rate <= _LARGEST:
            return f"limits: the rate of {product.kind} is {product.rate!r} operations a second; allowed is 1 or more"
    for link in limits.links:
        if not (_SHORTEST <= link.seconds <= _LONGEST and 0 < link.sent < _LARGEST):
            return f"limits: a link sends {link.sent} bytes in {link.seconds!r} s; {_ALLOWED}, and more than 0 bytes"
    return "" if 0 <= limits.cache_bytes < _LARGEST else f"limits: a cache has {limits.cache_bytes} bytes"


def of_attachment(found: Attachment) -> str:
    """What can't be true of what a tool found. Its series may have any number: a training may diverge."""
    for kernel in found.kernels:
        if not 0 < kernel.launches < _LARGEST:
            return f"a kernel is launched {kernel.launches!r} times a call; allowed is more than 0"
    for each in found.ranges:
        if not 0 < each.count < _LARGEST:
            return f"a call has {each.count!r} ranges of a name; allowed is more than 0"
        if not 0 <= each.depth <= _DEEPEST:
            return f"a range has the depth {_short(each.depth)}; allowed is 0 to {_DEEPEST}"
    kernels = (value for kernel in found.kernels for value in kernel.values)
    return _first_endless((*found.values, *kernels, *(value for each in found.ranges for value in each.values)))


def _of_counts(found: Measurement) -> str:
    """What is wrong with what is counted. A shift by 100 gives zero for 0 to 2**100 - 1 alone."""
    if work := found.work:
        if (work.read | work.written | work.sent | work.items | work.again) >> 100:
            return f"the work has a number that is {_NOT_WHOLE}"
        if work.again > work.read:
            return f"the work reads {work.again} bytes a second time, and {work.read} bytes at all"
        for kind, count in (*work.flops, *found.arithmetic):
            if count >> 100:
                return f"the operations in {kind} are {_NOT_WHOLE}"
    if (moved := found.traffic) and (moved.read | moved.written) >> 100:
        return f"the traffic has a number that is {_NOT_WHOLE}"
    for kernel in found.kernels:
        if (kernel.registers | kernel.local | kernel.shared) >> 100:
            return f"the kernel {kernel.name} has a number that is {_NOT_WHOLE}"
    return ""


def _of_case(case: Case) -> str:
    for name, size in case.shape:
        if size >> 100:
            return f"the size {name} is {_NOT_WHOLE}"
    for name, value in case.choices:
        if not isinstance(value, str) and not _is_finite(value):
            return f"the choice {name} is {_short(value)}; allowed is less than 2**100"
    return "" if 0 < case.world <= _LARGEST_WORLD else f"the world is {_short(case.world)}; allowed is 1 or more"


def _of_machine(machine: Machine) -> str:
    return "" if machine.devices else "the machine has no device; allowed is one or more"


def _of_stream(point: StreamPoint) -> str:
    if not (_SHORTEST <= point.seconds <= _LONGEST):
        return f"limits: a stream takes {point.seconds!r} s; {_ALLOWED}"
    if min(point.read, point.written) < 0 or not 0 < point.moved <= _LARGEST_STREAM:
        return f"limits: a stream reads {_short(point.read)} and writes {_short(point.written)} bytes"
    return ""


def _endless(record: Any) -> str:
    """The first number of a record that isn't finite, or too large for anything that is counted."""
    return next((f"it has the number {_short(number)}" for number in _numbers(record) if not _is_finite(number)), "")


def _first_endless(named: Iterable[tuple[str, float]]) -> str:
    return next((f"{name} is {_short(value)}" for name, value in named if not _is_finite(value)), "")


def _is_finite(number: float) -> bool:
    return abs(number) <= _LARGEST


def _numbers(record: Any) -> Iterator[float]:
    """Every number of a record, in whatever it consists of."""
    if isinstance(record, int | float):
        yield record
    elif isinstance(record, tuple):
        for part in record:
            yield from _numbers(part)
    elif is_dataclass(record):
        for field in fields(record):
            yield from _numbers(getattr(record, field.name))


def _worst(samples: Sequence[float]) -> float:
    """The sample that isn't allowed; of samples that are too long together, the longest."""
    return next((sample for sample in samples if not _SHORTEST <= sample <= _LONGEST), max(samples))


def _short(number: float) -> str:
    """A number as an error has it. A whole one may have thousands of digits."""
    short = isinstance(number, float) or abs(number) < _LARGEST
    return repr(number) if short else f"2**{int(number).bit_length() - 1} or more"
