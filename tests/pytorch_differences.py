"""What tests expect of the installed PyTorch where versions differ, but no rule of ours: which names it has, what its
compiler makes of undefined behaviour, what its kernels leave open. Each has a name here, and says what was measured."""

from collections.abc import Iterable

from decomp.torch_internals import versions


def since(version: tuple[int, int], now: object, before: object) -> object:
    """`now` from a version of PyTorch on, `before` in those before it."""
    return now if versions.INSTALLED >= version else before


def present(names: Iterable[str]) -> list[str]:
    """Of names of ATen's ops, `relu`, those that the installed version has; each is one that some version has."""
    by_name = {name: versions.versions_with(f"aten.{name}") for name in names}
    assert all(by_name.values()), by_name
    return [name for name, known in by_name.items() if versions.in_words(versions.INSTALLED) in known]


OVERFLOW_IS_SEEN = since((2, 14), False, True)
"""Whether a sign that a signed overflow makes differs once Inductor compiled it: it did on 2.13.0, not on 2.14.1."""
BYTES_ARE_COMPILED_RIGHT = versions.INSTALLED != (2, 14)
"""Inductor sums products of uint8 to other bytes on 2.14.1, in a program that is right call by call."""
KERNEL_DIFFERENCES = since(
    (2, 14),
    {
        "nn.functional.scaled_dot_product_attention": "a row whose scores are all NaN gives 0 (2.13.0: NaN)",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "the same",
    },
    {},
)
"""Of PyTorch's operator tests, those in which the kernels of later versions do what nobody can want."""
