"""Wrong warnings that older versions stored. They are left out where a run is shown; the stored run keeps them."""

from __future__ import annotations

import re
from dataclasses import replace

from harness import stats
from harness.model import Measurement, Run

_ASKED = re.compile(r"asked for ([\d.]+)%")


def without_false_warnings(run: Run) -> Run:
    """The run without warnings that its own samples contradict.

    Until 0.1.0 every sampling that time had ended was called `noisy`, also where the interval was narrower than asked
    for.
    """
    return replace(run, measurements=tuple(map(_judged_again, run.measurements)))


def _judged_again(measurement: Measurement) -> Measurement:
    true = tuple(
        warning
        for warning in measurement.warnings
        if warning.code != "noisy" or not _narrow_enough(measurement, warning.message)
    )
    return measurement if true == measurement.warnings else replace(measurement, warnings=true)


def _narrow_enough(measurement: Measurement, message: str) -> bool:
    asked = _ASKED.search(message)
    return asked is not None and stats.relative_width(measurement.samples) <= float(asked[1]) / 100
