"""Dropout, its masks and gradients, and what it is fused with."""
