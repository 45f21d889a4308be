"""Reductions over the rows of a matrix: softmax, LayerNorm, RMSNorm, and their gradients."""
