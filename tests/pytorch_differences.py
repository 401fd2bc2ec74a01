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
MORE_CALLS = since(
    (2, 14),
    {
        "clamp": 5,
        "clamp between crossed bounds": 5,
        "clamp_min0": 4,
        "clamp_min1": 4,
        "clamp_max": 4,
        "fmax": 1,
        "fmin": 4,
        "softshrink": 2,
    },
    {},
)
"""How many calls more ops take on tinygrad where PyTorch shares gradients at ties (`ties_share_gradients`)."""
ROWS_HAVE_SCALES = since((2, 12), True, False)
"""Whether the CPU kernel of `_scaled_mm` takes a scale for each row, and `_scaled_mm_v2` has one."""
MASKS_ARE_KEPT = since((2, 14), True, False)
"""Whether the backward of the Huber loss reads the masks of its ties, for the same reason."""
I1E_HAS_A_GRADIENT_AT_NAN = since((2, 15), False, True)
"""Whether the gradient of i1e at NaN is that at 0, as of the rules; on 2.15.0 it is NaN."""
KERNEL_DIFFERENCES = since(
    (2, 14),
    {
        "nn.functional.scaled_dot_product_attention": "a row whose scores are all NaN gives 0 (2.13.0: NaN)",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "the same",
    },
    {},
)
"""Of PyTorch's operator tests, those in which the kernels of later versions do what nobody can want."""
CAME_LATER = {
    "_upsample_lanczos2d_aa": (2, 12),
    "linear_cross_entropy": (2, 13),
    "_linear_cross_entropy_batch_chunked_no_reduction": (2, 13),
}
"""Names that tables of op facts have, by the first version that has them."""
LACKING = {name for name, version in CAME_LATER.items() if versions.INSTALLED < version}
"""Those of them that the installed version lacks."""
NEXTAFTER_HAS_A_GRADIENT = since((2, 13), True, False)
"""Whether PyTorch differentiates nextafter; 2.11.0 and 2.12.1 refuse."""
NOT_EXPORTED = since((2, 13), (), ("grad", "grad of vmap", "vjp", "jvp", "jacrev"))
"""Transforms that torch.export fails on: before 2.13.0 it does not record the functions that leave a level of
gradients, so that a result is a wrapped tensor and no fake one."""
CONTIGUOUS_ON_META = since((2, 13), [], ["aten.contiguous.default"])
"""Calls that a transformer layer on the meta device has beside those of one on the CPU: fake attention has the strides
of the CPU's kernel there from 2.13.0 on."""
POOLS_KEEP_PARITY = since((2, 13), False, True)
"""Whether torch.export assumes of a pooled dynamic size that it is odd as in the example, where a stride is 2."""
OPEN_STRIDES_ARE_MERGED = since((2, 13), True, False)
"""Whether fake tensors merge dimensions of memory with gaps of any size by a view: before 2.13.0 the smaller of two
strides s and 4·s is not known to be s, and the merged ones are copied."""
OTHER_LINES = since(
    (2, 13),
    {},
    {"lowered to chip: 73 calls of 17 ops became 221 of 20": "lowered to chip: 73 calls of 16 ops became 221 of 20"},
)
"""Lines of a transcript in the documents that read otherwise before 2.13.0, as exported programs have an op less."""
SPECTRA_HAVE_THEIR_STRIDES = since((2, 12), True, False)
"""Whether fake tensors give a spectrum along an inner dimension the strides of its kernel; those of 2.11.0 have it
contiguous."""
ATTENTION_OF_NO_ROWS_RUNS = since((2, 12), True, False)
"""Whether attention of an empty batch runs whatever the sizes of its operands are: 2.11.0 raises."""
MIXED_DISTANCES_TRAIN = since((2, 12), True, False)
"""Whether `mse_loss` of two dtypes has a gradient: on 2.11.0 its backward raises."""
QUERIES_MAY_BE_EMPTY = versions.INSTALLED != (2, 12)
"""Whether attention by queries of no elements is the mean of all values: the kernel of 2.12.1 returns zeros."""
