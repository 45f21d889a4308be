"""The families of our kernels, whose names say what they do: profilers add up the time of each family."""

from __future__ import annotations

from harness.families import declare

_ONE_BY_ONE = (
    r"scalar|naive|unrolled|sequential|strided|ballot8?|bitset|from_y|index32|index64|fastdiv|inner1|outer1|half1|"
    r"divmod|twice|divmul"
)
_ELEMENTWISE = r"bias|two_biases|p?relu|dropout|random_mask"

declare("elementwise_unrolled", rf"^({_ELEMENTWISE})(_\w+)?_({_ONE_BY_ONE})(64)?$")
declare("gemm", r"^int8_linear_(few|tiles)$|^(linear|qkv)_few_rows_")
declare("reduction", r"^prelu_grad_(sum|total)$")
declare("elementwise_vectorised", rf"^({_ELEMENTWISE})_\w+$")
declare("normalisation", r"^bn_\w+$")
declare("copy", r"^(copy_bytes|(round|widen)_vectors|widen_rows|grid_stride|strided_\w+|misaligned_\w+)$")
declare("elementwise_unrolled", r"^(aliasing|branches|local_array)_\w+$")
declare("unscale", r"^unscale_\w+$")
declare("optimiser", r"^adamw_\w+$")
declare("elementwise_vectorised", r"^(de)?quantize_(?!\w*layer_norm)\w*tuned$|^(add_bias|activate)_whole$|^dequantise$")
declare("elementwise_unrolled", r"^((de)?quantize|quantise_step)_(?!\w*layer_norm)\w+$|^(add_bias|activate)$")
