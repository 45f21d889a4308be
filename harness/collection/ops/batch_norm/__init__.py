"""Batch norm in training, fused with an addition and ReLU."""
