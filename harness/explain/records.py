"""What is known of a case, and the reasons that rules find in it. All quantities are in SI units."""

from __future__ import annotations

from dataclasses import dataclass

from harness import units
from harness.devices import Device
from harness.metrics import Subject
from harness.model import PIPE, Case, DeviceFacts, KernelFacts, KernelProfile, Work

AT, NEAR = 0.98, 0.95
"""From these shares of the ceiling on a case counts as at the ceiling, and as near it, where no cause is looked for."""
OWN = 0.9
"""A kernel that reads at least this share of what is needed from memory streams it, whatever else caches give."""
MINOR = 0.05
"""A kernel that takes less than this share of the time is looked at only if larger ones aren't most of the time."""
MOST = 0.8
"""The share of the time that the kernels which are looked at take together at least."""
MEMORY_BUSY = 0.8
"""From this share of its time on that a plain stream of its bytes takes, memory is what bounds a kernel."""
COUNTED = "by counters"
"""Who says how many bytes are moved, if a profiler does."""
SECTOR = 32
"""Bytes of a sector, which is what memory and caches move at least."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that bounds a case.

    rule: the name of the file that found it. verdict: what bounds the case, a sentence. sums: lines with the figures
    and how they were computed, to be checked by hand. remedy: what to change. saves: seconds of a call that the remedy
    saves at most; None where that can't be said. aside: it is true, but it isn't why the device takes as long, so it
    is never the verdict.
    """

    rule: str
    verdict: str
    sums: tuple[str, ...]
    remedy: str
    saves: float | None = None
    aside: bool = False


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

    @property
    def loaded(self) -> float | None:
        """Bytes of the sectors that loads of registers touch in a call; None if they weren't counted."""
        sectors = self.get("load_sectors")
        return None if sectors is None else sectors * SECTOR * self.launches

    @property
    def bypasses(self) -> bool:
        """Whether most of what it reads doesn't come by loads of registers, but by copies to shared memory."""
        return self.read is not None and self.loaded is not None and self.loaded < 0.5 * self.read

    @property
    def fullest(self) -> tuple[str, float]:
        """The pipe that is used most, and the share of its rate that is used; '' and 0 if no pipe was counted."""
        return max(self.beginning(PIPE).items(), key=lambda item: item[1], default=("", 0.0))

    def _of_a_call(self, name: str) -> float | None:
        value = self.get(name)
        return None if value is None else value * self.launches


def counts(profile: KernelProfile) -> bool:
    """Whether there are counters of memory among the figures of a kernel."""
    return bool({"read_bytes", "load_requests"} & dict(profile.values).keys())


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another variant of the same case in the same run, with its time in seconds.

    launches: kernels of a call, as a profiler saw them; None if none did.
    """

    variant: str
    time: float
    launches: float | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is known of a case. Figures that nobody told are None or empty.

    time: seconds a call. subject: work, traffic, limits, and the ceiling's seconds (`best`). scenario: the name by
    which the case was asked for. kernels: what a profiler saw, in the order of their launches; tool: which one.
    facts: what the compiler made of the kernels that the variant has loaded, which needn't all be launched.
    siblings: the other variants, the fastest first. kind: the kind of device; None if there is none of its name here.
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
    kind: Device | None = None

    @property
    def work(self) -> Work:
        return self.subject.work or Work()

    @property
    def best(self) -> float | None:
        """Seconds that the work takes on this machine at best."""
        return self.subject.best

    @property
    def of_ceiling(self) -> float | None:
        return self.best / self.time if self.best else None

    @property
    def near_ceiling(self) -> bool:
        return self.of_ceiling is not None and self.of_ceiling >= NEAR

    @property
    def major(self) -> tuple[Seen, ...]:
        """The kernels that matter: each large one, and the largest that together take most of the time."""
        covered, chosen = 0.0, set()
        for kernel in sorted(self.kernels, key=lambda kernel: kernel.share, reverse=True):
            if kernel.share >= MINOR or covered < MOST:
                chosen.add(id(kernel))
            covered += kernel.share
        return tuple(kernel for kernel in self.kernels if id(kernel) in chosen)

    @property
    def has_counters(self) -> bool:
        """Whether a profiler has told counters, not only which kernels there are and what they take."""
        return any(counts(kernel.profile) for kernel in self.kernels)

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
            return *self.counted, COUNTED
        traffic = self.subject.traffic
        return (traffic.read, traffic.written, "by count") if traffic else None

    def gain(self, seconds: float) -> float:
        """The smaller of `seconds` and what lies between the time and the ceiling, which no remedy beats."""
        most = seconds if self.best is None else min(seconds, self.time - self.best)
        return max(0.0, most)

    def busy(self, kernel: Seen) -> float:
        """Seconds of a call that the kernel takes even if no latency is left to wait for.

        The most of: a plain stream of the bytes that it moves; the cycles in which instructions are issued; the
        cycles that its fullest pipe needs.
        """
        issued = kernel.seconds * max(kernel.get("issue_active") or 0.0, kernel.fullest[1])
        return max(issued, self.streaming(kernel) or 0.0)

    def memory_busy(self, kernel: Seen) -> float | None:
        """The share of the kernel's time that a plain stream of its bytes takes; None if that isn't known.

        This is not `dram_active`, which is a share of the datasheet's peak, that no stream reaches.
        """
        seconds = self.streaming(kernel)
        return None if seconds is None or not kernel.seconds else seconds / kernel.seconds

    def memory_idle(self, kernel: Seen) -> bool:
        """Whether memory is known not to be what bounds the kernel."""
        busy = self.memory_busy(kernel)
        return busy is not None and busy < MEMORY_BUSY

    def in_cache(self, kernel: Seen) -> bool:
        """Whether the caches have most of what the kernel accesses, so that rules about memory don't apply to it.

        A kernel that reads all that is needed from memory may besides load small things many times.
        """
        if kernel.read is None:
            return False
        if self.resident is not None:
            return True
        streams = kernel.read >= OWN * self.work.read > 0
        return not streams and kernel.loaded is not None and kernel.read < 0.5 * kernel.loaded

    @property
    def resident(self) -> float | None:
        """Bytes that a case's only kernel moves through memory, if they are less than half of the bytes needed."""
        if len(self.kernels) != 1 or not self.counted:
            return None
        moved = sum(self.counted)
        return moved if moved < 0.5 * self.work.moved else None

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
