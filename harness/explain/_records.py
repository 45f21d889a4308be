"""What is known of a case, and the reasons that rules find in it. All quantities are in SI units."""

from __future__ import annotations

from dataclasses import dataclass

from harness import units
from harness.metrics import Subject
from harness.model import Case, DeviceFacts, KernelFacts, KernelProfile, Work

NEAR = 0.95
"""From this share of the ceiling on a case counts as at the ceiling: ceilings and times agree within a few percent."""
MINOR = 0.05
"""A kernel that takes less than this share of the time isn't looked at: no remedy there would be seen in the time."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that bounds a case.

    rule: the name of the file that found it. verdict: what bounds the case, a sentence. sums: lines with the figures
    and how they were computed, to be checked by hand. remedy: what to change. saves: seconds of a call that the remedy
    saves at most; None where that can't be said.
    """

    rule: str
    verdict: str
    sums: tuple[str, ...]
    remedy: str
    saves: float | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A kernel that a profiler saw.

    share: of the time of all kernels of a call. seconds: this share of the time that was measured without a profiler.
    """

    profile: KernelProfile
    share: float
    seconds: float

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def launches(self) -> float:
        return self.profile.launches

    def get(self, name: str) -> float | None:
        """A figure of a launch, by its name in `model/counters.py`; None if the profiler didn't tell it."""
        return dict(self.profile.values).get(name)

    def beginning(self, prefix: str) -> dict[str, float]:
        """The figures whose names begin so, such as all pipes, by the rest of their names."""
        return {name.removeprefix(prefix): value for name, value in self.profile.values if name.startswith(prefix)}

    @property
    def read(self) -> float | None:
        """Bytes that all launches of a call read from the device's memory."""
        return self._of_a_call("read_bytes")

    @property
    def written(self) -> float | None:
        """Bytes that all launches of a call write to the device's memory."""
        return self._of_a_call("written_bytes")

    def _of_a_call(self, name: str) -> float | None:
        value = self.get(name)
        return None if value is None else value * self.launches


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another variant of the same case in the same run, with its time in seconds."""

    variant: str
    time: float


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is known of a case. Figures that nobody told are None or empty.

    time: seconds a call. subject: work, traffic, limits, and the ceiling's seconds (`floor`). scenario: the name by
    which the case was asked for. kernels: what a profiler saw, in the order of their launches; tool: which one.
    facts: what the compiler made of the kernels that the variant has loaded, which needn't all be launched.
    siblings: the other variants, the fastest first.
    """

    case: Case
    time: float
    subject: Subject
    device: DeviceFacts
    scenario: str = ""
    tool: str = ""
    kernels: tuple[Seen, ...] = ()
    facts: tuple[KernelFacts, ...] = ()
    siblings: tuple[Sibling, ...] = ()

    @property
    def work(self) -> Work:
        return self.subject.work or Work()

    @property
    def floor(self) -> float | None:
        """Seconds that the work takes on this machine at best."""
        return self.subject.floor

    @property
    def of_ceiling(self) -> float | None:
        return self.floor / self.time if self.floor else None

    @property
    def near_ceiling(self) -> bool:
        return self.of_ceiling is not None and self.of_ceiling >= NEAR

    @property
    def major(self) -> tuple[Seen, ...]:
        """The kernels that take a part of the time that matters."""
        return tuple(kernel for kernel in self.kernels if kernel.share >= MINOR)

    @property
    def counted(self) -> tuple[float, float] | None:
        """Bytes that a call reads and writes, by counters; None if a kernel has no such counters."""
        pairs = [(kernel.read, kernel.written) for kernel in self.kernels]
        read = [value for value, _ in pairs if value is not None]
        written = [value for _, value in pairs if value is not None]
        return (sum(read), sum(written)) if pairs and len(read) == len(written) == len(pairs) else None

    @property
    def moved(self) -> tuple[float, float, str] | None:
        """Bytes that a call reads and writes, and who says so: counters, or the variant's own account."""
        if self.counted:
            return *self.counted, "by counters"
        traffic = self.subject.traffic
        return (traffic.read, traffic.written, "by count") if traffic else None

    def gain(self, seconds: float) -> float:
        """So many seconds, but no more than lie between the time and the ceiling, which no remedy beats."""
        most = seconds if self.floor is None else min(seconds, self.time - self.floor)
        return max(0.0, most)

    def busy(self, kernel: Seen) -> float:
        """Seconds of a call that the kernel takes even if no latency is left to wait for.

        The most of: a plain stream of the bytes that it moves; the cycles in which instructions are issued.
        """
        issued = kernel.seconds * (kernel.get("issue_active") or 0.0)
        return max(issued, self.streaming(kernel) or 0.0)

    def streaming(self, kernel: Seen) -> float | None:
        """Seconds that a plain stream of the kernel's bytes takes, or the share of the time that memory is active."""
        limits = self.subject.limits
        if limits and kernel.read is not None and kernel.written is not None:
            launches = max(kernel.launches, 1.0)
            one = limits.stream_seconds(round(kernel.read / launches), round(kernel.written / launches))
            if one is not None:
                return one * launches
        active = kernel.get("dram_active")
        return None if active is None else active * kernel.seconds

    def label(self, kernel: Seen) -> str:
        """The kernel's name, with its share of the time where there are several."""
        return (
            kernel.name if len(self.kernels) == 1 else f"{kernel.name} ({units.percent(kernel.share, 0)} of the time)"
        )
