"""The command line as it is, with fewer pairs: the statistics have tests of their own."""

import sys

from harness.cli import app
from harness.gate import deciding, looks
from harness.processes import descendants

deciding.SCREEN_PAIRS = deciding.LEAST_PAIRS = 2
looks.CONFIRM_PAIRS, looks.LOOKS = 2, 1
looks.LOOK_ALPHAS = (0.2,)  # type: ignore[assignment] # one look instead of two
descendants.adopt()  # as every command does, or nothing could be forked
app(sys.argv[1:], prog_name="harness")
