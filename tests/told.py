"""What a worker of pytest-xdist tells the session of each test: pytest has six messages a test, most without news.

They took a twentieth of the processor's time of `make test`.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

SHORT = 0.005
"""Seconds below which pytest's `--durations` leaves out a phase, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test as pytest does, but tell neither that it begins and ends, nor of a setup that was as usual."""
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if is_news(report):
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def is_news(report: pytest.TestReport) -> bool:
    """Whether a report says more than that setup or teardown passed in no time, and wrote nothing."""
    return report.when == "call" or not report.passed or report.duration >= SHORT or bool(report.sections)
