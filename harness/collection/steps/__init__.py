"""Whole steps as ops: training and inference of a model, on one device or several, and an input pipeline."""
