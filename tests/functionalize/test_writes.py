"""What programs write back, and the modules of functional bodies."""

from torch import nn
from torch.fx import symbolic_trace

from decomp.functionalize.writes import as_module
from decomp.graphs.rewrite import copy_graph


def test_a_functional_body_and_the_modules_in_it_keep_their_training_flags():
    body = symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Dropout()))
    body.eval()
    body.get_submodule("1").train()
    functional = as_module(body, copy_graph(body.graph).graph, {})
    assert not functional.training and functional.get_submodule("1").training and body.get_submodule("1").training
