"""Attention over windows."""
