"""Decoding with a language model: one more token for each sequence, whose keys and values before it are kept.

Little is computed, and all weights and all kept keys and values are read, so bytes set the ceiling.
"""
