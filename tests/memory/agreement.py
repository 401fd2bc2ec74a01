"""A planned program compared with the program that was planned: the same results bit for bit, the same writes, the same
random draws, and nothing of one call left to another."""

import copy

import torch
from torch.utils import _pytree as pytree


def bits(value):
    """The properties in which results must agree: bits, dtype, sizes and strides."""
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.detach().resolve_conj().resolve_neg()
    flat = plain.contiguous().view(-1).view(torch.uint8).tolist() if plain.numel() else []
    strides = [stride for size, stride in zip(value.shape, value.stride()) if size > 1] if value.numel() else []
    return str(value.dtype), tuple(value.shape), strides, flat


def run(module, args, kwargs=None, seed=3):
    """The results of a call, the inputs behind it, and the buffers."""
    args = pytree.tree_map_only(torch.Tensor, lambda t: _copied(t), args)
    torch.manual_seed(seed)
    with torch.no_grad():
        results = module(*args, **(kwargs or {}))
    return [pytree.tree_map(bits, part) for part in (results, args, dict(module.named_buffers()))]


def _copied(tensor):
    laid_out = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return laid_out.copy_(tensor.detach())


def storages(value):
    """The addresses of the memory of all tensors in nested results."""
    return {t.untyped_storage().data_ptr() for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)} - {0}


def agrees(plan, module, args, kwargs=None):
    """Whether the plan's program does what `module` does, twice, with no memory in common between two calls."""
    wanted = copy.deepcopy(module), plan.apply()
    wanted[1].load_state_dict(copy.deepcopy(wanted[0].state_dict()), strict=False)
    own = copy.deepcopy(wanted[1])
    for seed in (1, 2):
        assert run(own, args, kwargs, seed) == run(wanted[0], args, kwargs, seed)
    with torch.no_grad():
        first, second = own(*args, **(kwargs or {})), own(*args, **(kwargs or {}))
    given = storages((args, kwargs, dict(own.state_dict()), list(own.buffers())))
    return not (storages(first) - given) & (storages(second) - given)
