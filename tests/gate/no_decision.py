"""As few_pairs.py, with levels at which no pairs decide anything: every case stays undecided until it goes on."""

import runpy
from pathlib import Path

from harness.gate import looks

looks.PASS_LEVEL = 1e-90
looks.look_alpha = lambda _: 1e-90
runpy.run_path(str(Path(__file__).with_name("few_pairs.py")))
