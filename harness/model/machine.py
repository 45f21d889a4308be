"""The machine that measured: its devices, its host, and the state of a device at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known of one device. Zero, None or an empty text stands for what the device doesn't tell."""

    name: str
    memory_bytes: int
    cache_bytes: int
    compute_capability: str = ""
    multiprocessors: int = 0
    max_sm_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of one kind that a run may use, and their host. `fingerprint` differs between two machines."""

    kind: str
    fingerprint: str
    devices: tuple[DeviceFacts, ...]
    driver: str = ""
    cpu: str = ""
    cpu_count: int = 0
    host_memory_bytes: int = 0
    system: str = ""
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def device(self) -> DeviceFacts:
        """The first device, which cases of one device run on."""
        return self.devices[0]

    @property
    def name(self) -> str:
        """The devices by name: 'NVIDIA H200', or '2 x NVIDIA H200'."""
        return self.device.name if len(self.devices) == 1 else f"{len(self.devices)} x {self.device.name}"


@dataclass(frozen=True, slots=True)
class Conditions:
    """State of the device at one moment; None for what the device doesn't tell.

    reasons: why clocks were lowered. others: how many processes computed on the device, beside the one that asks.
    """

    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()
    others: int = 0
