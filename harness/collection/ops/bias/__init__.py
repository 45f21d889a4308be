"""Biases, with and without a residual."""
