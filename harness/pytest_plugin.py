"""The plug-in of pytest: the fixture `gpu_time`, a summary at the end, and a file of times to compare with.

    def test_softmax_is_fast(gpu_time):
        assert gpu_time(softmax, x).of_ceiling > 0.9

`pytest --gpu-times FILE` compares each time with the one in the file, and fails a test whose call has become slower by
more than `--gpu-margin`, beyond the noise of both times. `--gpu-times-update` writes the times of this session into
FILE. Without a GPU the tests are skipped, and say why.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.api import Time

_MARGIN = 0.05


@dataclass
class GpuTimes:
    """The times of this session, and the file that they are compared with.

    stored: times of the file by key: microseconds, with the ends of their interval. machine: the file's.
    """

    file: Path | None
    margin: float
    update: bool
    times: dict[str, Time] = field(default_factory=dict)
    stored: dict[str, dict[str, float]] = field(default_factory=dict)
    machine: str = ""

    def read(self) -> None:
        """Read the file, where there is one. Raises pytest.UsageError for one that holds no times."""
        if self.file is None or not self.file.is_file():
            return
        try:
            found = json.loads(self.file.read_text(encoding="utf-8"))
            self.machine = str(found["machine"])
            self.stored = {
                str(key): {name: float(each[name]) for name in ("us", "low", "high")}
                for key, each in found["times"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"--gpu-times {self.file}: holds no times: {error!r}; --gpu-times-update writes them"
            raise pytest.UsageError(message) from error

    def write(self) -> None:
        """Write this session's times into the file; what other tests left there stays, if the machine is the same."""
        assert self.file
        own = {
            key: {"us": time.us, "low": time.interval[0], "high": time.interval[1]} for key, time in self.times.items()
        }
        kept = self.stored if self.machine == _machine() else {}
        text = json.dumps({"machine": _machine(), "times": dict(sorted({**kept, **own}.items()))}, indent=2)
        self.file.write_text(f"{text}\n", encoding="utf-8")

    def slower(self, key: str, time: Time) -> str:
        """A complaint about a call that has become slower than the margin allows, whatever the noise of both times."""
        before = self.stored.get(key)
        if before is None or self.update or self.machine != _machine():
            return ""
        if time.interval[0] <= before["high"] * (1 + self.margin):
            return ""
        return f"{key} takes {time.us:.4g} us, {time.us / before['us']:.3g} times as long as {self.file} says"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("gpu times")
    group.addoption("--gpu-times", metavar="FILE", type=Path, help="compare times of gpu_time with the ones in FILE")
    group.addoption("--gpu-times-update", action="store_true", help="write the times of this session into FILE")
    group.addoption(
        "--gpu-margin", metavar="SHARE", type=float, default=_MARGIN, help="loss of speed that passes; default: 0.05"
    )


_KEY: pytest.StashKey[GpuTimes] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Read the file of times."""
    file, update = config.getoption("gpu_times"), config.getoption("gpu_times_update")
    if update and file is None:
        raise pytest.UsageError("--gpu-times-update needs --gpu-times FILE, which is to be written")
    config.stash[_KEY] = session = GpuTimes(file, config.getoption("gpu_margin"), update)
    session.read()


@pytest.fixture
def gpu_time(request: pytest.FixtureRequest) -> Callable[..., Time]:
    """`harness.time`, whose result is in the summary: `gpu_time(f, x).us`, `gpu_time(f, x).of_ceiling`.

    Skips the test without a GPU, fails it if the result is wrong, or slower than the file of times allows.
    """
    if reason := missing():
        pytest.skip(f"gpu_time needs a GPU: {reason}")
    session = request.config.stash[_KEY]

    def measured(function: Callable[..., object], *args: Any, **options: Any) -> Time:
        import harness

        time: Time = harness.time(function, *args, **options)
        key = f"{request.node.nodeid}::{time.name}"
        number = sum(known == key or known.startswith(f"{key}#") for known in session.times)
        key = f"{key}#{number + 1}" if number else key
        session.times[key] = time
        if complaint := session.slower(key, time):
            pytest.fail(complaint, pytrace=False)
        return time

    return measured


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print each time, beside the one of the file; and write the file, if that is asked for."""
    session = config.stash[_KEY]
    if not session.times:
        return
    terminalreporter.section("gpu times")
    alike = session.machine == _machine()
    if session.stored and not alike:
        terminalreporter.line(f"{session.file} is of another machine ({session.machine}), so nothing is compared")
    for key, time in session.times.items():
        before = session.stored.get(key) if alike else None
        ratio = f"  {before['us'] / time.us:.3f}x of {before['us']:.4g} us" if before else ""
        terminalreporter.line(f"{key.rpartition('::')[0]}: {time}{ratio}")
    if session.update:
        session.write()
        terminalreporter.line(f"written to {session.file}")


def missing() -> str | None:
    """Why there is no GPU to use; None if there is one."""
    from harness import devices

    return devices.kinds()["cuda"].missing()


def _machine() -> str:
    """The machine that times belong to: its name, and what tells it from others."""
    from harness import devices

    kind = devices.choose(None)
    machine = devices.kinds()[kind].machine()
    return f"{machine.name} ({machine.fingerprint})"
