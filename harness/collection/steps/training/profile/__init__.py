"""The tool `losses` of `harness profile`: longer trainings of the rungs. The entry point `harness.tools` names it."""
