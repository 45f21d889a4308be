"""Whole training steps and whole inference of a model, each as one call of an op.

The variants of a training op are rungs of two ladders, torch's and ours, which both begin with mixed precision (amp). A
rung keeps what the rungs above it on its ladder have; its line says what it is based on where that is another one. A
call is a step: forward, loss, backward, optimizer. Data is on the device already, and is the same in each step. Weights
and data come from the seed of the case's group, so all rungs begin alike.

The dtype of a case is the type of halves in mixed precision. All rungs are compared with the peak of this type, also
rungs that compute in float32: the ceiling says what the machine could do, whichever rung does it.
"""
