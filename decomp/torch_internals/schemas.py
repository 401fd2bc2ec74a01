"""The schemas of registered ops: there is no public list of them."""

import torch

FunctionSchema = torch._C.FunctionSchema
Argument = torch._C.Argument

all_schemas = torch._C._jit_get_all_schemas
"""The schemas of all ops of all libraries."""

schemas_of = torch._C._jit_get_schemas_for_operator
"""The schemas of the overloads of `namespace::name`; none where there is no such op, and no error."""
