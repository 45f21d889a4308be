"""Ops on lists of tensors, such as the gradients or the parameters of a model: one call for all of them."""
