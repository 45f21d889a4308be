"""How memory is accessed: copies with strides, misalignment, and few bytes in flight; and arithmetic in flight."""
