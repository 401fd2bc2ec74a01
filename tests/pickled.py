"""What a test has a pool of processes do: a module of its own, for each process of the pool imports it."""

import pickle

import torch
from torch import nn

import decomp


def again(value):
    """What comes back of a value that is sent away."""
    return pickle.loads(pickle.dumps(value))


def lower_to_nothing(_):
    """Fail."""
    decomp.lower(nn.GELU(), to=decomp.Target("none", ["add"]), args=(torch.ones(3),), rules={})
