from __future__ import annotations

import pytest

from tests.told import SHORT, is_news


def report(
    when: str, outcome: str = "passed", duration: float = 0.0, sections: tuple[tuple[str, str], ...] = ()
) -> pytest.TestReport:
    return pytest.TestReport("t", ("t.py", 1, "t"), {}, outcome, None, when, sections, duration)


def test_only_a_setup_or_teardown_as_usual_is_not_told():
    assert [is_news(report(when)) for when in ("setup", "call", "teardown")] == [False, True, False]
    for when in ("setup", "teardown"):
        assert is_news(report(when, outcome="failed"))
        assert is_news(report(when, outcome="skipped"))
        assert is_news(report(when, duration=SHORT))
        assert is_news(report(when, sections=(("Captured stderr setup", "a warning"),)))
