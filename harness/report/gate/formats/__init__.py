"""Formats of a gate run, one a file: each has `write(run, folder) -> list[Path]`."""
