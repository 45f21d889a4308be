"""Ops of the collection, a folder for each family. What several families share lies in the modules of this folder."""

from harness.collection.ops import kernel_families  # noqa: F401 - it declares them
