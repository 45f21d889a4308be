"""The rules of `harness explain`, one file each, found by their names."""
