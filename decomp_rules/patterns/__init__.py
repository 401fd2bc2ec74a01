"""Named patterns for backends to bind to their own ops; `FOLDING`, rules that fold batch norm into weights; and
`INTEGER_PRODUCTS`, rules for linear layers on quantised values. None of these are part of `RULES`, because fused ops
depend on the target.

```python
rules.pattern(decomp_rules.patterns.linear_relu)(torch.ops.npu.linear_relu)
```
"""

from decomp_rules.patterns.blocks import (
    add_layer_norm as add_layer_norm,
    add_relu as add_relu,
    add_rms_norm as add_rms_norm,
    attention as attention,
    attention_divided as attention_divided,
    attention_masked as attention_masked,
    attention_masked_divided as attention_masked_divided,
    geglu as geglu,
    rms_norm as rms_norm,
    swiglu as swiglu,
)
from decomp_rules.patterns.folding import FOLDING as FOLDING
from decomp_rules.patterns.layers import (
    conv_bn as conv_bn,
    conv_bn_relu as conv_bn_relu,
    conv_relu as conv_relu,
    conv_silu as conv_silu,
    linear_bn as linear_bn,
    linear_gelu as linear_gelu,
    linear_gelu_tanh as linear_gelu_tanh,
    linear_relu as linear_relu,
    linear_silu as linear_silu,
)
from decomp_rules.patterns.quantised import (
    INTEGER_PRODUCTS as INTEGER_PRODUCTS,
    qconv as qconv,
    qconv_quantised as qconv_quantised,
    qlinear as qlinear,
    qlinear_quantised as qlinear_quantised,
)
