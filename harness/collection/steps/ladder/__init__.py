"""The ladder of a user's own step: a file with a model, a batch and a loss becomes an op, and each rung a variant.

The rungs are those of the bundled training steps, as far as they apply to any model: torch's, and ours by
`harness.nn.patch`. `harness ladder` asks `survey` in a process of its own what the file gives, writes the plug-in that
`plugin` gives, and measures it as every op is measured. The entry point `harness.ladders` names this package.
"""

from __future__ import annotations

from harness.collection.steps.ladder._code import code
from harness.collection.steps.ladder._declared import definition, op, plugin
from harness.collection.steps.ladder._survey import survey

PREFIX = "ladder_"
"""How the names of the ops begin."""
PAGES = "harness.collection.steps.ladder.report"
"""What reports say of the ops."""

__all__ = ["PAGES", "PREFIX", "code", "definition", "op", "plugin", "survey"]
