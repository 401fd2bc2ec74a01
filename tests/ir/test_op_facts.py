"""Every table of facts about ops is compared with the installed version of PyTorch."""

import contextlib
import importlib
import math
import operator

import pytest
import torch

from decomp.functionalize.functional_ops import functional_call
from decomp.functionalize.views import VIEW_SCATTER
from decomp.ir import op_facts
from decomp.ir.op_facts import VIEW_KINDS, ViewKind
from tests.pytorch_differences import LACKING

aten = torch.ops.aten
OF_PYTHON = {"getitem", "view_dtype", "shape"}
"""Names of ours: an operator, `view` with a dtype, an attribute."""

OPS = {
    name: sorted(table)
    for name, table in vars(op_facts).items()
    if name.isupper() and isinstance(table, (frozenset, set, dict))
}
OF_REGIONS = ("SWITCHED_REGIONS", "RUN_ONCE", "CONTROL_FLOW", "DISTINCT_OPERANDS")
OF_FUNCTIONS = ("COLLECTIVES", "MODE_SWITCHES")


def overloads(name):
    packet = getattr(aten, name, None) or getattr(torch.ops.torch_nn, name, None)
    return [getattr(packet, overload) for overload in packet.overloads()] if packet is not None else []


@pytest.mark.parametrize("table", [name for name in OPS if name not in (*OF_REGIONS, *OF_FUNCTIONS)])
def test_every_name_of_a_table_is_an_op_or_a_method(table):
    with contextlib.suppress(ImportError):  # before torch 2.13
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
    of_python = (torch.Tensor, torch.nn.functional)
    unknown = {n for n in OPS[table] if not overloads(n) and not any(hasattr(owner, n) for owner in of_python)}
    assert unknown - OF_PYTHON == LACKING & set(OPS[table])


@pytest.mark.parametrize("table", OF_REGIONS)
def test_every_region_is_a_higher_order_op(table):
    import torch._higher_order_ops  # which registers most of them

    known = set(dir(torch.ops.higher_order)) | {op.__name__ for op in torch._ops._higher_order_ops.values()}
    assert set(OPS[table]) <= known


def test_mode_switches_are_functions_of_torch():
    places = (torch._C, torch.amp.autocast_mode, torch.autograd.grad_mode)
    assert all(any(hasattr(place, name) for place in places) for name in op_facts.MODE_SWITCHES)


def test_assertions_are_named_by_their_beginning():
    names = {schema.name.partition("::")[2] for schema in torch._C._jit_get_all_schemas()}
    assert all(any(name.startswith(prefix) for name in (*names, *dir(torch))) for prefix in op_facts.ASSERTS)


def declares_a_view(name):
    declared = [returned.alias_info for overload in overloads(name) for returned in overload._schema.returns]
    return any(info is not None and not info.is_write for info in declared)


@pytest.mark.parametrize("name", OPS["UNDECLARED_VIEWS"])
def test_an_undeclared_view_is_in_no_schema(name):
    assert not declares_a_view(name)


@pytest.mark.parametrize("name", sorted(op_facts.MAYBE_VIEW | op_facts.SAME_TENSOR))
def test_what_may_be_a_view_says_so_by_its_schema_or_is_known_not_to(name):
    assert declares_a_view(name) or name in op_facts.UNDECLARED_VIEWS or not overloads(name)


@pytest.mark.parametrize("name", OPS["VIEW_KINDS"])
def test_what_a_write_goes_through_is_a_view(name):
    assert declares_a_view(name) or name in op_facts.UNDECLARED_VIEWS or not overloads(name)


@pytest.mark.parametrize("name", OPS["VIEW_ATTRIBUTES"])
def test_an_attribute_shares_memory(name):
    x = torch.zeros(2, 2, dtype=torch.complex64)
    assert getattr(x, name).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_every_kind_of_view_is_taken_by_an_op_and_can_be_put_back():
    assert set(VIEW_KINDS.values()) == set(ViewKind) == set(VIEW_SCATTER)


@pytest.mark.parametrize("name", OPS["BATCH_NORMS"])
def test_a_batch_norm_takes_running_statistics(name):
    assert any({"running_mean", "running_var"} <= {a.name for a in o._schema.arguments} for o in overloads(name))


def test_what_writes_metadata_is_tagged_so():
    names = {s.name.partition("::")[2] for s in torch._C._jit_get_all_schemas() if s.name.startswith("aten::")}
    tagged = {name for name in names if any(torch.Tag.inplace_view in o.tags for o in overloads(name))}
    assert op_facts.METADATA_WRITES <= tagged
    assert tagged - op_facts.METADATA_WRITES - op_facts.STORAGE_CHANGES <= {"rename_", "set_data"}, "new ones"


@pytest.mark.parametrize("name", [n for n in OPS["STORAGE_CHANGES"] if overloads(n)])
def test_what_changes_storage_writes_by_its_schema(name):
    assert all(overload._schema.is_mutable for overload in overloads(name))


@pytest.mark.parametrize("name", OPS["SAVES_ITS_RESULT"])
def test_what_saves_its_result_has_no_gradient_once_that_is_written(name):
    x = torch.full((2, 3), 0.5, requires_grad=True)
    more = {"hypot": (x,), "copysign": (x,), "_softmax": (0, False), "_log_softmax": (0, False), "logsumexp": (0,)}
    along = (0,) if name in ("softmax", "log_softmax", "_safe_softmax", "cumprod", "logcumsumexp") else ()
    result = getattr(aten, name)(x, *more.get(name, along))
    result = result[0] if isinstance(result, tuple) else result
    with torch.no_grad():
        result.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("name", OPS["NOT_WRITES"])
def test_what_does_not_write_leaves_the_version_alone(name):
    x = torch.ones(2, requires_grad=True)
    before = x._version
    getattr(x, name)()
    assert x._version == before


@pytest.mark.parametrize("name", OPS["PREDICATES"])
def test_a_predicate_is_boolean_and_keeps_the_dtype_in_place(name):
    operands = (torch.ones(2),) * (1 if name == "logical_not" else 2)
    assert getattr(torch, name)(*operands).dtype is torch.bool
    assert getattr(operands[0].clone(), f"{name}_")(*operands[1:]).dtype is torch.float32


@pytest.mark.parametrize("name", OPS["PROMOTING_IN_PLACE"])
def test_what_promotes_does_so_without_a_write_alone(name):
    dtype = torch.float32 if name == "float_power_" else torch.int32
    x, argument = torch.ones(2, dtype=dtype), 2 if name == "float_power_" else 0
    assert getattr(x, name.removesuffix("_"))(argument).dtype is not dtype
    if name != "float_power_":  # which refuses the dtypes that it would promote
        assert getattr(x, name)(argument).dtype is dtype


@pytest.mark.parametrize("name", OPS["RANDOM_IN_PLACE"])
def test_an_in_place_random_op_is_tagged_and_has_a_functional_variant(name):
    assert all(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads(name))
    plain = "normal_functional" if name == "normal_" else name.removesuffix("_")
    assert any(not overload._schema.is_mutable for overload in overloads(plain))
    assert not hasattr(torch.Tensor, plain) or plain == "bernoulli"


def call(name, x, y):
    """A call of an op that saves nothing, of a matrix and another."""
    given = {
        "cat": ([x, y],),
        "stack": ([x, y],),
        "expand": (x, [4, 3, 3]),
        "to": (x, torch.float64),
        "fill": (x, 2.0),
        "view": (x, [9]),
        "reshape": (x, [9]),
        "permute": (x, [1, 0]),
        "transpose": (x, 0, 1),
        "select": (x, 0, 1),
        "slice": (x, 0, 1),
        "squeeze": (x,),
        "unsqueeze": (x, 0),
        "select_scatter": (x, y[0], 0, 0),
        "flatten": (x,),
        "slice_scatter": (x, y[1:], 0, 1),
        "diagonal_scatter": (x, y[0]),
        "full_like": (x, 2.0),
        "index_put": (x, [torch.tensor([0, 1])], y[:2]),
        "masked_fill": (x, y.detach() > 0, 2.0),
    }
    two = ("add", "sub", "rsub", "expand_as", "type_as", "copy", "view_as", "reshape_as")
    function = operator.getitem if name == "getitem" else getattr(aten, name)
    return function(*((x, 0) if name == "getitem" else given.get(name, (x, y) if name in two else (x,))))


@pytest.mark.parametrize("name", OPS["SAVES_NOTHING"])
def test_what_saves_nothing_saves_no_floats(name):
    x, y = (torch.rand(3, 3, requires_grad=True) for _ in range(2))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        call(name, x, y)
    assert not [tensor for tensor in saved if tensor.is_floating_point()]


def test_a_hook_sees_what_is_saved():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: None):
        torch.exp(torch.ones(2, requires_grad=True))
    assert saved


@pytest.mark.parametrize("name", OPS["DIFFERENTIABLE_IN_FIRST"])
def test_a_second_operand_that_gives_the_shape_gets_no_gradient(name):
    x, y = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
    result = getattr(x, name)([3, 3] if name == "sum_to_size" else y)
    assert torch.autograd.grad(result.sum(), [y], allow_unused=True) == (None,)


@pytest.mark.parametrize("name", OPS["FACTORIES"])
def test_a_factory_takes_no_tensor(name):
    found = overloads(name)
    assert any(not any("Tensor" in str(a.real_type) for a in o._schema.arguments) for o in found)


def test_ops_that_leave_memory_as_it_is_are_those_of_the_name():
    registered = (name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
    named = {name for name in registered if name.startswith(("empty", "new_empty"))}
    assert named == op_facts.UNINITIALISED


@pytest.mark.parametrize("name", OPS["SHAPE_OF_THE_FIRST"])
def test_the_values_of_a_first_operand_do_not_matter(name):
    rest = {"fill": (2.0,), "copy": (torch.ones(2),), "full_like": (2.0,), "randint_like": (9,)}.get(name, ())
    results = []
    for value in (0.0, 1.0):
        torch.manual_seed(0)
        results.append(getattr(aten, name)(torch.full((2,), value), *rest))
    assert results[0].shape == results[1].shape
    assert name in ("empty_like", "bernoulli") or torch.equal(*results)


@pytest.mark.parametrize("name", OPS["SIZES"])
def test_what_gives_a_size_returns_a_number(name):
    assert all("int" in str(o._schema.returns[0].real_type).lower() for o in overloads(name))


def test_ops_in_place_have_functional_forms():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for name in sorted(op_facts.PROMOTING_IN_PLACE | {f"{name}_" for name in op_facts.PREDICATES}):
        node = graph.call_method(name, (x,))
        assert functional_call(node, node.args, {})[1] == name.removesuffix("_")


@pytest.mark.parametrize("name", sorted(op_facts.COMMUTATIVE))
def test_operands_of_a_commutative_op_may_be_exchanged(name):
    op = getattr(torch, name)
    integers = torch.randint(-5, 6, (2, 40), generator=torch.Generator().manual_seed(0))
    extremes = torch.tensor([[math.inf, -0.0, 2.0, 0.0], [1.0, 0.0, -0.0, -math.inf]])
    floats = torch.cat([integers[:, :20] / 3, extremes], 1)
    for a, b in (integers, floats):
        if name.startswith("bitwise") or name in ("gcd", "lcm"):
            a, b = a.int(), b.int()
        elif not a.is_floating_point() and name in ("logaddexp", "logaddexp2", "hypot"):
            continue
        torch.testing.assert_close(op(a, b), op(b, a), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OPS["SUMS"])
def test_a_real_operand_of_a_sum_leaves_the_imaginary_part_of_a_complex_one(name):
    x, y = torch.tensor([1 + 2j, -3 - 0.5j]), torch.tensor([0.25, 4.0])
    for result in (getattr(torch, name)(x, y, alpha=1), getattr(torch, name)(y, x, alpha=1)):
        assert torch.equal(result.imag.abs(), x.imag.abs())


def test_sums_are_the_ops_that_scale_one_of_two_operands():
    schemas = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    scaling = {s.name[6:] for s in schemas if [a.name for a in s.arguments] == ["self", "other", "alpha"]}
    public = {name for name in scaling if not name.startswith("_") and not name.endswith("_")}
    assert public == op_facts.SUMS | {"subtract"}, "which is sub by another name"
