"""Other libraries beside our kernels: variants with the role `peer`, one file a library.

A library that isn't installed, or that can't do a case, is 'unsupported' with the reason. `pip install
'gpu-bench-harness[peers]'` installs all of them. A file imports its library only where a variant is prepared.
"""

from __future__ import annotations

from harness.collection.peers import flashinfer, liger, quack, torchao, triton

__all__ = ["flashinfer", "liger", "quack", "torchao", "triton"]
