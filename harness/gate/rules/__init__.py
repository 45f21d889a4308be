"""Rules of the gate, one a file: each has `judge(evidence) -> Iterator[Finding]`, and may have `review` too."""
