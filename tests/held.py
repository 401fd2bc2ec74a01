"""The memory that a program holds when PyTorch runs it: every storage that a call allocates, until it is freed."""

import weakref

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode


class Held(TorchDispatchMode):
    """The bytes of storages that calls made and that are still alive, at most."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {
            a.untyped_storage().data_ptr()
            for a in fx.node.map_aggregate(args, lambda a: a)
            if isinstance(a, torch.Tensor)
        }
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, (list, tuple)) else [result]:
            storage = made.untyped_storage()
            if storage.data_ptr() not in given and storage._cdata not in self.seen:
                self.now += storage.nbytes()
                self.seen.add(storage._cdata)
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    def _freed(self, key, size):
        self.seen.discard(key)
        self.now -= size


def held(lowered, args):
    """The memory held when a program runs node by node, each value until its last use."""
    module = lowered if isinstance(lowered, fx.GraphModule) else lowered.module()
    with torch.no_grad(), Held() as mode:
        kept = fx.Interpreter(module).run(*args)
    assert kept is not None
    return mode.most
