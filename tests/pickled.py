"""Functions that tests run in a pool of processes: a separate module, because each process of the pool imports it."""

import pickle

import torch
from torch import nn

import decomp


def again(value):
    """A value after a round trip through another process."""
    return pickle.loads(pickle.dumps(value))


def lower_to_nothing(_):
    """Fail."""
    decomp.lower(nn.GELU(), to=decomp.Target("none", ["add"]), args=(torch.ones(3),), rules={})
