"""One program serves the layouts that kernels do not tell apart, and others get one of their own."""

import torch
from torch import fx

from decomp.runtime.input_layouts import for_every_layout


def test_a_program_is_made_for_each_layout_whatever_the_strides_of_dimensions_of_size_one():
    module = fx.symbolic_trace(lambda x: x.exp())
    for node in module.graph.nodes:
        node.meta["val"] = torch.ones(1, 4)
    made = []

    def make(graph_module, examples):
        made.append([example.stride() for example in examples])
        return lambda arguments: graph_module(*arguments)

    function = for_every_layout(make, module, [torch.ones(1, 4)])
    for strides in ((4, 1), (9, 1), (8, 2), (8, 2)):
        x = torch.zeros(8).as_strided((1, 4), strides)
        assert function([x]).tolist() == [[1] * 4]
    assert made == [[(4, 1)], [(8, 2)]]
