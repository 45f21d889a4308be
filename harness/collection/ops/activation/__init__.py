"""Activations and their gradients: PReLU, and ReLU with a mask of bits."""
