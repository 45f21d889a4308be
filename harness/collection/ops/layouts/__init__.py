"""Ops that move elements and compute nothing, or nearly nothing."""
