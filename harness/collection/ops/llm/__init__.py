"""Ops of language models that aren't norms: SwiGLU, RoPE, cross-entropy, the backward of an embedding."""
