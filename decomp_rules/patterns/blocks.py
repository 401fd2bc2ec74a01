"""Parts of blocks: a residual connection and what follows it, gated activations, and hand-written normalizations and
attention."""

import torch
from torch.nn import functional as F

import decomp

add_relu = decomp.Pattern.of(lambda x, y: F.relu(x + y), "add_relu")
"""`relu(x + y)`."""
add_layer_norm = decomp.Pattern.of(
    lambda x, y, shape, w=None, b=None, eps=None: ((s := x + y), F.layer_norm(s, shape, w, b, eps)), "add_layer_norm"
)
"""`x + y`, and the layer norm of it, over the last dimensions of the sizes `shape`."""
add_rms_norm = decomp.Pattern.of(
    lambda x, y, shape, w=None, eps=None: ((s := x + y), F.rms_norm(s, shape, w, eps)), "add_rms_norm"
)
"""`x + y`, and the RMS norm of it."""
rms_norm = decomp.Pattern.of(lambda x, w, eps: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)), "rms_norm")
"""`w · x / √(mean(x²) + eps)` over the last dimension, written out."""
swiglu = decomp.Pattern.of(lambda gate, up: F.silu(gate) * up, "swiglu")
"""`silu(gate) · up` (Shazeer, GLU Variants Improve Transformer, 2020)."""
geglu = decomp.Pattern.of(lambda gate, up: F.gelu(gate) * up, "geglu")
"""`gelu(gate) · up`."""
attention = decomp.Pattern.of(
    lambda q, k, v, scale: torch.softmax(q @ k.transpose(-2, -1) * scale, -1) @ v, "attention"
)
"""`softmax(q·kᵀ · scale) · v`, written out."""
attention_divided = decomp.Pattern.of(
    lambda q, k, v, divisor: torch.softmax(q @ k.transpose(-2, -1) / divisor, -1) @ v, "attention_divided"
)
"""`softmax(q·kᵀ / divisor) · v`."""
attention_masked = decomp.Pattern.of(
    lambda q, k, v, scale, mask: torch.softmax(q @ k.transpose(-2, -1) * scale + mask, -1) @ v, "attention_masked"
)
"""`softmax(q·kᵀ · scale + mask) · v`."""
attention_masked_divided = decomp.Pattern.of(
    lambda q, k, v, divisor, mask: torch.softmax(q @ k.transpose(-2, -1) / divisor + mask, -1) @ v,
    "attention_masked_divided",
)
"""`softmax(q·kᵀ / divisor + mask) · v`."""
