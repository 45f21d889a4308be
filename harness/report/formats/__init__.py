"""Formats of a report, one a file: each has SUMMARY, one line, and `write(run, folder, notes) -> list[Path]`."""
