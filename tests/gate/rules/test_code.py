"""The rule about code that both sides shared."""

from __future__ import annotations

from harness.gate import Evidence
from harness.gate.rules import code


def test_shared_code_is_named_and_undecided() -> None:
    [finding] = code.judge(Evidence("main", (), (), same_code=("mykern/a.py", "b.so", "c.py", "d.py")))
    assert (finding.severity, finding.case) == ("undecided", None)
    assert finding.message.startswith("this code was not compared, since main used the same files")
    assert finding.message.endswith("mykern/a.py, b.so, c.py and 1 more")
    assert not list(code.judge(Evidence("main", (), ())))
