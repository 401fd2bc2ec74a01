"""A tensor whose memory anybody can count."""

import torch

X = torch.ones(1024)
ONE = 4096
"""Bytes of a tensor like `X`."""
