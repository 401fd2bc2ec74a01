"""Calls of pointwise ops whose arguments a schema does not tell, or that have more than one way to go. Their float
tensors give way to points over the whole domain where they are measured; the other arguments stay."""

from __future__ import annotations

import torch

from decomp_rules.samples.making import Calls, b, f, i, p, t, u, z

_FIBONACCI = (4660046610375530309, 7540113804746346429)
"""The pair of 64 bits of which Euclid's algorithm takes longest."""

CALLS: Calls = {
    # arithmetic
    "add": lambda: (
        *((f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), {"alpha": 0.3}), (f(4, 4), 2), (f(4, 4), 2.5, {"alpha": 3})),
        *((b(4, 4), f(4, 4)), (b(4, 4), b(4))),
    ),
    **dict.fromkeys(("maximum", "minimum"), lambda: ((f(4, 4), f(4, 4)), (b(4, 4), b(4)))),
    "sub": lambda: ((f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), {"alpha": 0.3}), (f(4, 4), 2), (i(9, 6), i(9, 6))),
    "rsub": lambda: ((f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), {"alpha": 0.3}), (f(4, 4), 2.5), (i(9, 6), i(9, 6))),
    "mul": lambda: (
        *((f(4, 4), f(4, 4)), (f(4, 4), 0.1), (f(4, 4), f(4)), (i(9, 4), 2)),
        *((b(4, 4), f(4, 4)), (b(4, 4), b(4)), (b(4), 0.1)),
    ),
    "div": lambda: (
        (f(4, 4), p(4, 4)),
        (f(4, 4), 3.0),
        (f(4, 4), p(4, 4), {"rounding_mode": "floor"}),
        (f(4, 4), p(4, 4), {"rounding_mode": "trunc"}),
        (f(4, 4), 0.3, {"rounding_mode": "floor"}),
        (i(20, 6) - 10, i(5, 6) + 1, {"rounding_mode": "floor"}),
        (i(20, 6) - 10, i(5, 6) + 1),
    ),
    "floor_divide": lambda: ((f(4, 4), p(4, 4)), (f(4, 4), 0.3), (i(20, 6) - 10, i(5, 6) + 1)),
    "true_divide": lambda: ((f(4, 4), p(4, 4)), (f(4, 4), 3.0)),
    "fmod": lambda: ((f(4, 4), p(4, 4)), (f(4, 4), 0.3), (i(20, 6) - 10, i(5, 6) + 1), (i(20, 6) - 10, -3)),
    "remainder": lambda: (
        (f(4, 4), p(4, 4)),
        (f(4, 4), 0.3),
        (2.5, p(4, 4)),
        (i(20, 6) - 10, i(5, 6) + 1),
        (i(20, 6) - 10, -3),
    ),
    "addcmul": lambda: ((f(4, 4), f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), f(4, 4), {"value": 0.3})),
    "addcdiv": lambda: ((f(4, 4), f(4, 4), p(4, 4)), (f(4, 4), f(4, 4), p(4, 4), {"value": 0.3})),
    "lerp": lambda: ((f(4, 4), f(4, 4), u(4, 4)), (f(4, 4), f(4, 4), 0.3), (f(4, 4), f(4, 4), 0.7)),
    "pow": lambda: (
        (p(4, 4), f(4, 4)),
        (f(4, 4), 2),
        (f(4, 4), 3),
        (p(4, 4), 0.5),
        (p(4, 4), -0.5),
        (p(4, 4), 2.4),
        (p(4, 4), 2.5),
        (f(4, 4), 5),
        (f(4, 4), -1),
        (2.0, f(4, 4)),
        (0.3, f(4, 4)),
        (i(6, 5), i(4, 5)),
        (i(6, 5), 3),
    ),
    "float_power": lambda: ((p(4, 4), f(4, 4)), (p(4, 4), 2.5), (2.0, f(4, 4))),
    "ldexp": lambda: ((f(4, 4), i(9, 4, 4) - 4),),
    "copysign": lambda: ((f(4, 4), f(4, 4)), (f(4, 4), -2.0)),
    "nextafter": lambda: ((f(4, 4), f(4, 4)),),
    "gcd": lambda: ((i(90, 8) - 45, i(90, 8) - 45), (t(12, 0, 7, *_FIBONACCI), t(0, 0, -7, *reversed(_FIBONACCI)))),
    "lcm": lambda: ((i(30, 8) - 15, i(30, 8) - 15), (t(12, 0, 6), t(0, 0, -4))),
    "heaviside": lambda: ((f(4, 4), f(4, 4)),),
    "clamp": lambda: (
        (f(4, 4), -0.5, 0.5),
        (f(4, 4), None, 0.5),
        (f(4, 4), 0.1),
        (f(4, 4), f(4, 4), f(4, 4)),
        (i(9, 6), 2, 5),
    ),
    "clamp_min": lambda: ((f(4, 4), 0.1), (f(4, 4), f(4, 4))),
    "clamp_max": lambda: ((f(4, 4), 0.1), (f(4, 4), f(4, 4))),
    "nan_to_num": lambda: ((f(4, 4),), (f(4, 4), 1.0, 2.0, -2.0), (f(4, 4), 0.5, None, 3.0)),
    "round": lambda: ((f(4, 4),), (f(4, 4), {"decimals": 2}), (f(4, 4), {"decimals": -1})),
    "frexp": lambda: ((f(4, 4),),),
    "polar": lambda: ((p(4, 4), f(4, 4)),),
    "complex": lambda: ((f(4, 4), f(4, 4)),),
    "angle": lambda: ((f(4, 4),), (z(4, 4),)),
    "real": lambda: ((z(4, 4),),),
    "imag": lambda: ((z(4, 4),),),
    "conj": lambda: ((z(4, 4),),),
    "_conj": lambda: ((z(4, 4),), (2 + 3j,)),
    "_conj_copy": lambda: ((z(4, 4),),),
    "_conj_physical": lambda: ((z(4, 4),),),
    "conj_physical": lambda: ((z(4, 4),), (f(4, 4),)),
    "resolve_conj": lambda: ((z(4, 4),), (f(4, 4),)),
    "resolve_neg": lambda: ((f(4, 4),),),
    "_neg_view": lambda: ((f(4, 4),),),
    "_neg_view_copy": lambda: ((f(4, 4),),),
    "isreal": lambda: ((f(4, 4),), (z(4, 4),)),
    "view_as_real": lambda: ((z(4, 4),),),
    "view_as_real_copy": lambda: ((z(4, 4),),),
    "view_as_complex": lambda: ((f(4, 2),),),
    "view_as_complex_copy": lambda: ((f(4, 2),),),
    # comparison, logic, bits
    "isclose": lambda: ((f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), 0.1, 0.2, True)),
    "allclose": lambda: ((f(4, 4), f(4, 4)),),
    "equal": lambda: ((f(4, 4), f(4, 4)),),
    "where": lambda: (
        (b(4, 4), f(4, 4), f(4, 4)),
        (b(4, 4), f(4, 4), 2.0),
        (b(4, 4), 1.0, 0.0),
        (b(4, 4), 1.0, f(4, 4)),
        (b(4, 4), f(4), t(1.0)),
        (b(4, 4), i(9, 4, 4), i(9, 4, 4)),
        (b(4, 4), b(4, 4), b(4)),
    ),
    **dict.fromkeys(
        ("eq", "ne"),
        lambda: (
            (f(4, 4), f(4, 4)),
            (f(4, 4), 2),
            (f(4, 4), float("inf")),
            (i(9, 6), i(9, 6)),
            (i(9, 6), 3),
            (b(6), True),
        ),
    ),
    "lt": lambda: (
        *((f(4, 4), f(4, 4)), (f(4, 4), 2), (i(9, 4, 4), i(9, 4, 4)), (b(8), b(8)), (b(4, 1), b(5))),
        (b(8), i(3, 8)),
    ),
    **dict.fromkeys(
        ("le", "ge"),
        lambda: ((f(4, 4), f(4, 4)), (f(4, 4), 2), (f(4, 4), 0), (i(9, 4, 4), i(9, 4, 4)), (i(9, 4, 4), 5)),
    ),
    "masked_fill": lambda: ((f(4, 4), b(4, 4), 0.5), (f(4, 4), b(4), t(2.0).squeeze())),
    "bitwise_and": lambda: ((i(99, 8), i(99, 8)), (i(99, 8), 6), (b(8), b(8))),
    "bitwise_or": lambda: ((i(99, 8), i(99, 8)), (i(99, 8), 6), (b(8), b(8))),
    "bitwise_xor": lambda: ((i(99, 8), i(99, 8)), (i(99, 8), 6), (b(8), b(8))),
    "bitwise_not": lambda: ((i(99, 8),), (b(8),)),
    **{
        name: (lambda: ((i(99, 8), i(5, 8)), (i(99, 8), 2), (t(1, -3, 7, 99, -1, 5, 2), t(62, 63, 64, 70, -1, 1, 0))))
        for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
    },
    "__and__": lambda: ((i(99, 8), i(99, 8)),),
    "__or__": lambda: ((i(99, 8), i(99, 8)),),
    "__xor__": lambda: ((i(99, 8), i(99, 8)),),
    # activations
    "gelu": lambda: ((f(4, 4),), (f(4, 4), {"approximate": "tanh"})),
    "gelu_backward": lambda: ((f(4, 4), f(4, 4)), (f(4, 4), f(4, 4), {"approximate": "tanh"})),
    "softplus": lambda: ((f(4, 4),), (f(4, 4), 0.7, 3.0)),
    "softplus_backward": lambda: ((f(4, 4), f(4, 4), 1, 20), (f(4, 4), f(4, 4), 0.7, 3.0)),
    "elu": lambda: ((f(4, 4),), (f(4, 4), 0.7, 1.3, 0.9)),
    "elu_backward": lambda: ((f(4, 4), 1.0, 1.0, 1.0, False, f(4, 4)), (f(4, 4), 0.7, 1.3, 0.9, True, f(4, 4))),
    "celu": lambda: ((f(4, 4),), (f(4, 4), 0.7)),
    **{name: (lambda: ((f(4, 4),),)) for name in ("hardswish", "log_sigmoid", "special_ndtr", "special_log_ndtr")},
    **{
        name: (lambda: ((f(4, 4), f(4, 4)),))
        for name in ("hardswish_backward", "hardsigmoid_backward", "mish_backward", "rrelu_with_noise_functional")
    },
    "leaky_relu": lambda: ((f(4, 4),), (f(4, 4), 0.2)),
    "leaky_relu_backward": lambda: ((f(4, 4), f(4, 4), 0.01, False),),
    "rrelu": lambda: ((f(4, 4),), (f(4, 4), 0.1, 0.3)),
    "rrelu_with_noise": lambda: ((f(4, 4), f(4, 4)),),
    "rrelu_with_noise_backward": lambda: ((f(4, 4), f(4, 4), p(4, 4), 0.1, 0.3, False, False),),
    "prelu": lambda: ((f(4, 4), t(0.25)), (f(4, 3), f(3))),
    "_prelu_kernel": lambda: ((f(4, 4), f(1, 4)),),
    "_prelu_kernel_backward": lambda: ((f(4, 4), f(4, 4), f(1, 4)),),
    "hardtanh": lambda: ((f(4, 4),), (f(4, 4), -0.3, 0.4)),
    "hardtanh_backward": lambda: ((f(4, 4), f(4, 4), -1.0, 1.0),),
    "hardshrink": lambda: ((f(4, 4),), (f(4, 4), 0.2)),
    "hardshrink_backward": lambda: ((f(4, 4), f(4, 4), 0.5),),
    "softshrink": lambda: ((f(4, 4),), (f(4, 4), 0.2)),
    "softshrink_backward": lambda: ((f(4, 4), f(4, 4), 0.5),),
    "threshold": lambda: ((f(4, 4), 0.1, 20.0),),
    "threshold_backward": lambda: ((f(4, 4), f(4, 4), 0.0),),
    "glu": lambda: ((f(4, 6),), (f(4, 6), 0)),
    "glu_backward": lambda: ((f(4, 3), f(4, 6), -1),),
    "logit": lambda: ((u(4, 4),), (u(4, 4), 0.1)),
    "logit_backward": lambda: ((f(4, 4), u(4, 4)), (f(4, 4), u(4, 4), 0.1)),
    "log_sigmoid_forward": lambda: ((f(4, 4),),),
    # The buffer is a function of the input: a single number represents both, so that they do not vary independently.
    "log_sigmoid_backward": lambda: ((f(4, 4), f(4, 4), t(0.5).squeeze()),),
    "xlogy": lambda: ((f(4, 4), p(4, 4)), (f(4, 4), 2.0), (2.0, p(4, 4))),
    "special_xlog1py": lambda: ((f(4, 4), p(4, 4)), (f(4, 4), 2.0), (2.0, p(4, 4))),
    "special_zeta": lambda: ((p(4, 4) + 1, p(4, 4)), (3.0, p(4, 4)), (p(4, 4) + 1, 2.0)),
    "polygamma": lambda: ((0, p(4, 4)), (1, p(4, 4)), (3, p(4, 4))),
    "mvlgamma": lambda: ((p(4, 4) + 3, 2),),
    "igamma": lambda: ((p(4, 4), p(4, 4)),),
    "igammac": lambda: ((p(4, 4), p(4, 4)),),
    # losses by element
    "mse_loss": lambda: ((f(5, 4), f(5, 4)), (f(5, 4), f(5, 4), 0), (f(5, 4), f(5, 4), 2)),
    "mse_loss_backward": lambda: ((f(5, 4), f(5, 4), f(5, 4), 0), (t(0.7), f(5, 4), f(5, 4), 1)),
    "l1_loss": lambda: ((f(5, 4), f(5, 4)), (f(5, 4), f(5, 4), 0)),
    "smooth_l1_loss": lambda: ((f(5, 4), f(5, 4)), (f(5, 4), f(5, 4), 0, 0.3), (f(5, 4), f(5, 4), 0, 0.0)),
    "smooth_l1_loss_backward": lambda: ((f(5, 4), f(5, 4), f(5, 4), 0, 0.3), (t(0.7), f(5, 4), f(5, 4), 1, 1.0)),
    "huber_loss": lambda: ((f(5, 4), f(5, 4)), (f(5, 4), f(5, 4), 0, 0.3)),
    "huber_loss_backward": lambda: ((f(5, 4), f(5, 4), f(5, 4), 0, 0.3), (t(0.7), f(5, 4), f(5, 4), 1, 1.0)),
    "soft_margin_loss": lambda: ((f(5, 4), f(5, 4).sign()), (f(5, 4), f(5, 4).sign(), 0)),
    "soft_margin_loss_backward": lambda: ((f(5, 4), f(5, 4), f(5, 4).sign(), 0), (t(0.7), f(5, 4), f(5, 4).sign(), 1)),
    "binary_cross_entropy": lambda: ((u(5, 4), u(5, 4)), (u(5, 4), u(5, 4), p(5, 4), 0)),
    "binary_cross_entropy_backward": lambda: (
        (f(5, 4), u(5, 4), u(5, 4), None, 0),
        (t(0.7), u(5, 4), u(5, 4), p(5, 4)),
    ),
    "binary_cross_entropy_with_logits": lambda: (
        (f(5, 4), u(5, 4)),
        (f(5, 4), u(5, 4), None, None, 0),
        (f(5, 4), u(5, 4), p(5, 4), p(4), 0),
    ),
    "kl_div": lambda: ((f(5, 4), u(5, 4)), (f(5, 4), u(5, 4), 0), (f(5, 4), f(5, 4), 2, {"log_target": True})),
    "hinge_embedding_loss": lambda: ((f(5, 4), f(5, 4).sign()), (f(5, 4), f(5, 4).sign(), 0.5, 0)),
    "margin_ranking_loss": lambda: ((f(5), f(5), f(5).sign()), (f(5), f(5), f(5).sign(), 0.5, 0)),
    "poisson_nll_loss": lambda: (
        (f(5, 4), p(5, 4), True, False, 1e-8, 0),
        (p(5, 4), p(5, 4), False, True, 1e-8, 1),
        (f(5, 4), p(5, 4), True, True, 1e-8, 2),
    ),
    # casts
    "to": lambda: (
        (f(4, 4), torch.float64),
        (f(4, 4) * 3, torch.int64),
        (f(4, 4), torch.bfloat16),
        (f(4, 4), torch.bool),
    ),
    "_to_copy": lambda: (
        (f(4, 4), {"dtype": torch.float64}),
        (f(4, 4) * 3, {"dtype": torch.int64}),
        (f(4, 4), {"dtype": torch.bfloat16}),
        (i(9, 4), {"dtype": torch.float32}),
        (f(4, 4), {"dtype": torch.bool}),
        (f(4, 4), {"dtype": torch.complex64}),
    ),
    "type_as": lambda: ((f(4, 4) * 3, i(9, 2)), (i(9, 4), f(2))),
    "chalf": lambda: ((z(4),),),
}

OWN = {"nextafter", "nan_to_num", "frexp", "to", "_to_copy", "type_as", "chalf", "isclose", "allclose"}
"""Ops whose meaning depends on the dtype: they are compared with themselves in the same dtype."""

UNTAGGED = set(
    "floor_divide polar complex real imag conj _conj _conj_copy resolve_conj resolve_neg _neg_view _neg_view_copy"
    " isreal isclose softplus_backward elu_backward leaky_relu_backward rrelu_with_noise rrelu_with_noise_backward"
    " _prelu_kernel _prelu_kernel_backward hardtanh_backward hardshrink_backward softshrink_backward"
    " log_sigmoid log_sigmoid_forward log_sigmoid_backward hardswish hardswish_backward hardsigmoid_backward"
    " mish_backward special_ndtr special_log_ndtr to _to_copy type_as".split()
)
"""Ops that compute element by element, though PyTorch has not tagged them so."""

LOSSES = set(
    "mse_loss mse_loss_backward l1_loss smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward"
    " soft_margin_loss soft_margin_loss_backward"
    " binary_cross_entropy_with_logits kl_div hinge_embedding_loss margin_ranking_loss poisson_nll_loss".split()
)
"""Losses that compute element by element unless they reduce."""
