"""Cases of a test that `make test` leaves out, since its other cases fail when the same thing breaks."""

from __future__ import annotations

from functools import partial

import pytest

rare = partial(pytest.param, marks=pytest.mark.slow)
"""`pytest.param` of a case that only `make slow-test` runs."""
