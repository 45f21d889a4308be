"""As few_pairs.py, with levels at which no pairs decide anything: every case stays undecided."""

import sys

from harness.cli import app
from harness.gate import deciding, looks
from harness.processes import descendants

deciding.SCREEN_PAIRS = deciding.LEAST_PAIRS = 2
looks.CONFIRM_PAIRS, looks.LOOKS = 2, 1
looks.PASS_LEVEL = looks.LATER_ALPHA = 1e-90
looks.LOOK_ALPHAS = (1e-90,)  # type: ignore[assignment] # one look instead of two
descendants.adopt()  # as every command does, or nothing could be forked
app(sys.argv[1:], prog_name="harness")
