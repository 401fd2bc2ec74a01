"""Questions of a rule about its operands are answered as for tensors, or raise an error that names the rule and the
line."""

import copy
import pickle

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.errors import RuleError

CHIP = decomp.Target("chip", ["where", "gt"])
X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
MODULES = {"copy": copy, "pickle": pickle, "torch": torch}
"""What expressions name."""
FORMS = {"aten": lambda model: model, "torch": fx.symbolic_trace}

ANSWERED = """
x.shape
x.size()
x.size(dim=1)
x.stride()
x.stride(dim=0)
x.storage_offset()
x.is_contiguous()
x.dtype
x.dtype.is_floating_point
x.is_floating_point()
x.is_complex()
x.is_signed()
x.is_conj()
x.is_neg()
x.is_cuda
x.is_cpu
x.is_meta
x.is_sparse
x.is_quantized
x.is_nested
x.is_mkldnn
x.layout
x.itemsize
x.nbytes
x.element_size()
x.ndim
x.dim()
x.dim_order()
x.numel()
x.device
x.get_device()
x.T.shape
x.mT.shape
x.H.shape
x.real.shape
len(x)
[row.shape for row in x]
torch.is_floating_point(x)
torch.is_complex(x)
torch.numel(x)
torch.get_device(x)
torch.result_type(x, 2.0)
torch.result_type(x, x.double())
torch.promote_types(x.dtype, torch.float64)
torch.broadcast_shapes(x.shape, (1, 3))
torch.finfo(x.dtype).eps
torch.Size(x.shape)
x.new_zeros(2).shape
x.new_full((2,), 3.0).dtype
x.new_tensor([1.0]).shape
torch.zeros_like(x).shape
torch.stack(list(x)).shape
copy.copy(x).shape
copy.deepcopy(x).shape
[*reversed(x)][0].shape
reversed(x).shape
x.view_as(x).shape
x.type_as(x).dtype
x.to("cpu").device
x.is_same_size(x)
x.unflatten(1, (3, 1)).shape
x.split(1)[0].shape
x[..., None].shape
x[[0, 1]].shape
sum(x).shape
abs(x).shape
pow(x, 2).shape
(2 ** x).shape
(x @ x.T).shape
x is None
x in [x]
{x: 1}[x]
hasattr(x, "shape")
hash(x) == hash(x)
torch.min(x, dim=0).values.shape
torch.sort(x).indices.dtype
x.max(1).values.shape
x.max(1)[1].shape
""".split("\n")[1:-1]

REFUSED = {
    "bool(x)": "branches on data",
    "not x": "branches on data",
    "x or x": "branches on data",
    "1.0 in x": "branches on data",
    "max(x[0, 0], x[0, 1])": "branches on data",
    "int(x)": "reads data as a Python number",
    "float(x)": "reads data as a Python number",
    "range(x)": "reads data as a Python number",
    "x.item()": "reads data (item)",
    "x.tolist()": "reads data (tolist)",
    "x.numpy()": "reads data (numpy)",
    "x.requires_grad": "reads requires_grad",
    "x.is_leaf": "uses .is_leaf",
    "x.data": "uses .data",
    "x.grad": "uses .grad",
    "x.grad_fn": "uses .grad_fn",
    "x.data_ptr()": "reads where a tensor is stored (data_ptr)",
    "x.is_set_to(x)": "reads where a tensor is stored (is_set_to)",
    "x.storage_type()": "reads where a tensor is stored (storage_type)",
    "x.foo": "uses the unknown attribute 'foo'",
    "x.add_(1)": "mutates a tensor",
    "torch.tensor(x)": "makes a concrete tensor of values (tensor)",
    "torch.as_tensor(x)": "makes a concrete tensor of values (as_tensor)",
    "torch.Tensor.dim(x)": "calls torch.Tensor.dim unbound",
    "x.__setitem__(0, 1)": "writes to a tensor",
    "x.__iadd__(1)": "+=",
    "setattr(x, 'foo', 1)": "assigns to an attribute of a tensor",
    "f'{x:.2f}'": "unsupported format string",
    "x.imag": "imag is not implemented",
    "x.backward()": "failed with RuntimeError: element 0 of tensors does not require grad",
    "pickle.dumps(x)": "failed with",
}


def asked(expression, form):
    """The value of an expression inside a rule, or the error with which the lowering fails."""
    found, rules = [], decomp.Rules()

    @rules.register(torch.relu)
    def relu(x):
        found.append(eval(expression, MODULES, {"x": x}))
        return torch.where(x > 0, x, 0)

    decomp.lower(FORMS[form](nn.ReLU()), to=CHIP, args=(X,), rules=rules, partial=True)
    return found[0]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_known_of_tensors_is_answered(form):
    wrong = {}
    for expression in ANSWERED:
        given, wanted = asked(expression, form), eval(expression, MODULES, {"x": X})
        if type(given) is not type(wanted) or given != wanted:
            wrong[expression] = given
    assert not wrong


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_is_an_error_that_names_rule_and_line(form):
    for expression, problem in REFUSED.items():
        with pytest.raises(RuleError) as caught:
            asked(expression, form)
        message = str(caught.value)
        assert message.startswith("rule relu (test_rule_operands.py:"), expression
        assert problem in message.splitlines()[0], (expression, message)
        assert "  at test_rule_operands.py:" in message, expression


def test_matching_on_the_shape_of_an_operand_is_answered():
    rules = decomp.Rules()

    @rules.register(torch.relu)
    def relu(x):
        match x.shape:
            case (2, columns):
                return torch.where(x > 0, x, columns - 3)
        raise AssertionError

    lowered = decomp.lower(nn.ReLU(), to=CHIP, args=(X,), rules=rules).result
    assert torch.equal(lowered(X), X.relu())
