"""`python -m harness` is the same as `harness`."""

import sys

if not sys.flags.safe_path:
    # `-m` puts the working folder first. A file there, such as copy.py, must not be taken for a library's.
    del sys.path[0]

from harness.cli import main

main()
