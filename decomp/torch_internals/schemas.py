"""The schemas of registered ops: there is no public list of them."""

import torch

from decomp.torch_internals import versions as _versions

FunctionSchema = torch._C.FunctionSchema
Argument = torch._C.Argument

all_schemas = torch._C._jit_get_all_schemas
"""The schemas of all ops of all libraries."""

schemas_of = torch._C._jit_get_schemas_for_operator
"""The schemas of the overloads of `namespace::name`; empty if there is no such op."""


def lacking_ops() -> list[str]:
    """Ops of ATen and prims that some tested version of PyTorch has, and the installed one lacks, by name."""
    there = {schema.name.replace("::", ".") for schema in all_schemas()}
    return sorted(name for name in _versions.names_by_version() if name not in there)
