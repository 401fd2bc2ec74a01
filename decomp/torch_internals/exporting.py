"""What `torch.export` is made of: the graph of Dynamo that `strict=True` starts from."""

from __future__ import annotations

from torch._export import config as export_config
from torch.export._trace import _export_to_torch_ir
from torch.fx.graph import _PyTreeInfo

dynamo_graph = _export_to_torch_ir
"""The whole of a module as one graph of Dynamo, whose parameters have the names of the module's; what an example input
was taken for is checked by the export that follows."""

# What a graph that takes and returns trees knows of them.
tree_info = _PyTreeInfo
