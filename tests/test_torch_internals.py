"""Each piece of private API of PyTorch that the package uses is there, and does what it is used for."""

import importlib
import operator
import pkgutil
import subprocess
import sys

import pytest
import torch
from torch import fx, nn

from decomp import torch_internals
from decomp.torch_internals import (
    archives,
    compiling,
    fakes,
    graphs,
    modes,
    process_groups,
    pytree,
    regions,
    schemas,
    sizes,
    transforms,
)
from tests.sharded.groups import process_group
from tests.torch_pieces import PIECES, piece, symbolic

MODULES = (archives, compiling, fakes, graphs, modes, process_groups, pytree, regions, schemas, sizes, transforms)
LATE = (
    "annotations",
    "CHANGES",
    "torch",
    "fx",
    "nn",
    "Any",
    "Path",
    "_pytree",
    "Callable",
    "Iterator",
    "NamedTuple",
    "contextlib",
    "importlib",
    "sys",
    "threading",
    "dispatch",
    "functools",
    "predispatch",
    "pyfunctorch",
    "TorchFunctionMode",
)
"""Names that a module needs for itself."""


class NamedParts(dict):
    """As `diffusers` registers its outputs: without paths, its names as the context."""


class TwoParts:
    def __init__(self, one, other):
        self.parts = [one, other]


pytree._pytree.register_pytree_node(
    NamedParts, lambda it: (list(it.values()), list(it)), lambda v, n: NamedParts(zip(n, v))
)
pytree._pytree.register_pytree_node(TwoParts, lambda it: (it.parts, None), lambda parts, _: TwoParts(*parts))


@piece("modes.is_any_autocast_enabled", "modes.DisableAutocast", "modes.exit_autocast")
def asks_of_all_devices():
    state = torch.amp.autocast_mode._enter_autocast("cpu", torch.bfloat16, True, None)
    assert modes.is_any_autocast_enabled()
    with modes.DisableAutocast():
        assert not modes.is_any_autocast_enabled()
    modes.exit_autocast(state)
    assert not modes.is_any_autocast_enabled()


class Functions(torch.overrides.TorchFunctionMode):
    calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


class Dispatches(modes.TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@piece("modes.DisableTorchFunction", "modes.without_function_modes", "modes.has_function_modes")
def hides_calls_from_function_modes():
    with Functions() as mode:
        assert modes.has_function_modes()
        with modes.DisableTorchFunction():
            torch.relu(torch.ones(2))
        with modes.without_function_modes():
            assert not modes.has_function_modes()
            torch.relu(torch.ones(2))
        assert mode.calls == 0 and modes.has_function_modes()
    assert not modes.has_function_modes()


@piece("process_groups.GroupPlace", "process_groups.place_in_group")
def finds_the_place_of_this_process_in_a_group_by_its_name():
    assert process_groups.place_in_group("0") is None
    with process_group(rank=1, size=3) as name:
        found = process_groups.place_in_group(name)
        assert found == process_groups.GroupPlace(rank=1, size=3)
        assert process_groups.place_in_group(torch.distributed.group.WORLD) == found
        assert process_groups.place_in_group("no such group") is None


@piece("process_groups.has_collectives", "process_groups.CollectiveOps")
def finds_collectives_whose_module_was_not_imported():
    code = (
        "from decomp.ops import collectives_with_gradient as found\n"
        "print(found.all_gather_into_tensor.default._schema.name)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process_groups.has_collectives()
    assert run.stdout == "_c10d_functional_autograd::all_gather_into_tensor\n"


@piece("modes.DisableTorchDispatch")
def hides_calls_from_dispatch_modes():
    with Dispatches() as mode:
        with modes.DisableTorchDispatch():
            torch.relu(torch.ones(2))
        assert mode.calls == 0


@piece("modes.DisablePythonDispatcher")
def runs_kernels_in_place_of_those_written_in_python():
    x = torch.empty((), device="meta")
    with modes.enable_python_dispatcher():
        in_python = x.expand(3, 1).stride()
        with modes.DisablePythonDispatcher():
            assert x.expand(3, 1).stride() != in_python


@piece("modes.TorchDispatchMode", "modes.has_dispatch_modes", "modes.disable_current_modes")
def sets_dispatch_modes_aside():
    with Dispatches() as mode:
        assert modes.has_dispatch_modes()
        with modes.disable_current_modes():
            assert not modes.has_dispatch_modes()
            torch.ones(2)
    assert mode.calls == 0 and not modes.has_dispatch_modes()


@piece("modes.ProcessState", "modes.process_state_kept")
def puts_state_back():
    with modes.process_state_kept():
        Dispatches().__enter__()
        Functions().__enter__()
        torch.set_grad_enabled(False)
        torch._C._functorch._vmap_increment_nesting(3, "error")
        torch._C._functorch._jvp_increment_nesting()
        torch._C._enter_dual_level()
        torch.autocast("cpu", torch.bfloat16).__enter__()
        torch._guards._TLS.tracing_context = torch._guards.TracingContext(None)
        torch.compiler._is_exporting_flag = True
    assert not modes.has_dispatch_modes() and not modes.has_function_modes() and torch.is_grad_enabled()
    assert torch._C._functorch.maybe_current_level() is None and not torch.is_autocast_enabled("cpu")
    assert torch._guards.TracingContext.try_get() is None and not torch.compiler.is_exporting()
    with torch.autograd.forward_ad.dual_level():  # of which there is one at a time
        assert torch.ones(2).requires_grad_().requires_grad


@piece(
    "transforms.depth",
    "transforms.current_level",
    "transforms.enter_vmap",
    "transforms.leave_vmap",
    "transforms.is_wrapped",
    "transforms.unwrapped",
    "transforms.outside_of_all",
    "transforms.unwrap_for_grad",
)
def knows_the_levels_of_transforms():
    x = torch.ones(2, 3)
    level = transforms.enter_vmap(2, "error")
    inner = torch._C._functorch._add_batch_dim(x, 0, level)
    assert transforms.depth() == 1 and transforms.current_level() == level
    assert transforms.is_wrapped(inner) and transforms.unwrapped(inner) is x
    assert transforms.unwrap_for_grad(x, level) is x
    with transforms.outside_of_all():
        assert transforms.depth() == 0
    transforms.leave_vmap()
    assert transforms.depth() == 0


@piece("transforms.is_of_transform", "transforms.has_transforms")
def tells_calls_of_transforms_from_others():
    program = torch.export.export(Vmapped(), (torch.ones(2, 3),))
    of_transform = [node.name for node in program.graph.nodes if transforms.is_of_transform(node.target)]
    assert "_add_batch_dim" in of_transform and "softmax" not in of_transform
    assert transforms.has_transforms(program.graph_module)


@piece("transforms.handed_on")
def hands_a_call_on_to_the_innermost_level():
    class Above(Recording):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            if transforms.depth():
                with self:
                    return transforms.handed_on(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    with modes.enable_python_dispatcher(), modes.EnablePreDispatch(), Above() as above:
        torch.vmap(lambda r: r * 2)(torch.ones(2, 3))
    assert {torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar} <= set(above.seen)


@piece("transforms.attention_formula")
def computes_flex_attention():
    q, mask = torch.ones(1, 1, 2, 2), (None,) * 12 + (128, 128, lambda b, h, i, j: i >= j)
    out = transforms.attention_formula(q, q, q, lambda s, b, h, i, j: s, mask, 1.0, {}, (), ())[0]
    assert torch.equal(out, q)


@piece("graphs.tree_info", "compiling.export_config")
def gives_the_graph_of_dynamo_the_inputs_of_the_module():
    with compiling.export_config.patch(use_legacy_dynamo_graph_capture=True):
        module = compiling.export_to_torch_ir(Vmapped(), (torch.ones(2, 3),))
    assert isinstance(module.graph._codegen.pytree_info, graphs.tree_info)


class Vmapped(torch.nn.Module):
    def forward(self, x):
        return torch.vmap(lambda r: r.softmax(0))(x)


class Recording(modes.ProxyTorchDispatchMode):
    def __init__(self):
        modes.TorchDispatchMode.__init__(self, modes.PRE_DISPATCH)
        self.pre_dispatch, self.seen = True, []

    def __enter__(self):
        return modes.TorchDispatchMode.__enter__(self)

    def __exit__(self, *exc):
        return modes.TorchDispatchMode.__exit__(self, *exc)


@piece("modes.ProxyTorchDispatchMode", "modes.EnablePreDispatch", "modes.PRE_DISPATCH")
def sees_calls_above_autograd():
    class Above(modes.ProxyTorchDispatchMode):
        def __init__(self):
            modes.TorchDispatchMode.__init__(self, modes.PRE_DISPATCH)
            self.pre_dispatch, self.seen = True, []

        def __enter__(self):
            return modes.TorchDispatchMode.__enter__(self)

        def __exit__(self, *exc):
            return modes.TorchDispatchMode.__exit__(self, *exc)

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    with modes.enable_python_dispatcher(), modes.EnablePreDispatch(), Above() as above:
        torch.nn.functional.linear(torch.ones(1, 2), torch.ones(3, 2))
    assert torch.ops.aten.linear.default in above.seen  # which autograd decomposes


@piece("modes.COMPOSITE_IMPLICIT")
def is_the_key_of_composites():
    assert torch.ops.aten.linear.default.has_kernel_for_dispatch_key(modes.COMPOSITE_IMPLICIT)
    assert not torch.ops.aten.add.Tensor.has_kernel_for_dispatch_key(modes.COMPOSITE_IMPLICIT)


@piece("modes.compile_lock")
def is_a_lock_of_dynamo():
    import torch._dynamo.convert_frame

    assert modes.compile_lock(True) is torch._dynamo.convert_frame.compile_lock


@piece("modes.enable_python_dispatcher")
def runs_decompositions_on_fakes():
    with fakes.FakeTensorMode(), modes.enable_python_dispatcher():
        assert torch.nn.functional.linear(torch.ones(1, 2), torch.ones(3, 2)).shape == (1, 3)


@piece("modes.is_traceable_wrapper_subclass")
def is_false_of_plain_tensors():
    assert not modes.is_traceable_wrapper_subclass(torch.ones(2))


@piece("pytree.tensors_in")
def _():
    one, two = torch.ones(1), torch.ones(2)
    assert pytree.tensors_in({"a": (one, 3), "b": [two]}) == [one, two]


@piece(*(f"pytree.{name}" for name in vars(pytree) if name.startswith("tree_")), "pytree.TreeSpec", "pytree.keystr")
def takes_trees_apart():
    tree = {"a": (1, [2]), "b": 3}
    leaves, spec = pytree.tree_flatten(tree)
    assert leaves == pytree.tree_leaves(tree) == [1, 2, 3] and isinstance(spec, pytree.TreeSpec)
    assert spec == pytree.tree_structure(tree) and pytree.tree_unflatten(leaves, spec) == tree
    assert pytree.tree_map(str, tree) == {"a": ("1", ["2"]), "b": "3"}
    assert pytree.tree_map_only(int, str, [1, "x"]) == ["1", "x"]
    assert pytree.keystr(pytree.tree_flatten_with_path(tree)[0][1][0]) == "['a'][1][0]"
    assert pytree.tree_flatten_spec(tree, spec) == [1, 2, 3]


@piece("pytree.tree_flatten_with_path", "pytree.MappingKey", "pytree.SequenceKey")
def names_parts_of_containers_that_were_registered_without_paths():
    given = [NamedParts(sample=1), TwoParts(2, NamedParts(a=3, b=4))]
    paths = [(pytree.keystr(path), leaf) for path, leaf in pytree.tree_flatten_with_path(given)[0]]
    assert paths == [("[0]['sample']", 1), ("[1][0]", 2), ("[1][1]['a']", 3), ("[1][1]['b']", 4)]
    whole = pytree.tree_flatten_with_path(given, lambda each: isinstance(each, TwoParts))[0]
    assert [pytree.keystr(path) for path, _ in whole] == ["[0]['sample']", "[1]"]


@piece("schemas.all_schemas", "schemas.lacking_ops", "schemas.schemas_of", "schemas.FunctionSchema", "schemas.Argument")
def lists_what_is_registered():
    found = schemas.schemas_of("aten::relu")
    assert isinstance(found[0], schemas.FunctionSchema) and isinstance(found[0].arguments[0], schemas.Argument)
    assert "aten::relu" in {schema.name for schema in schemas.all_schemas()}
    assert schemas.schemas_of("aten::no_such_op") == []
    assert "aten.relu" not in schemas.lacking_ops()


@piece("sizes.ShapeEnv", "sizes.DimDynamic", "sizes.StatelessSymbolicContext", "sizes.statically_known_true")
def makes_a_size_symbolic():
    env, size = symbolic()
    assert isinstance(size, torch.SymInt) and not sizes.statically_known_true(size == 3)
    assert sizes.statically_known_true(size * 2 == size + size) and not env.guards


@piece("sizes.ConstantSource")
def names_the_origin_of_a_size():
    assert sizes.ConstantSource("rows").source_name == "rows"


@piece("sizes.sympy_functions")
def has_the_operations_of_sizes():
    _, size = symbolic()
    (halved,) = (size // 2).node.expr.atoms(sizes.sympy_functions.FloorDiv)
    assert halved == sizes.sympy_functions.FloorDiv(size.node.expr, 2)


@piece("sizes.errors_on_new_guards")
def refuses_new_guards():
    env, size = symbolic()
    with sizes.errors_on_new_guards(env), pytest.raises(RuntimeError, match="== 3|Eq"):
        bool(size == 3)
    assert not env.guards and not env.frozen


@piece("sizes.PythonPrinter", "sizes.SYMPY_INTERP")
def prints_an_expression_as_python():
    _, size = symbolic()
    code = sizes.PythonPrinter().doprint((size * 4).node.expr)
    assert eval(code, {**sizes.SYMPY_INTERP, str(size.node.expr): 5}) == 20


@piece("sizes.sizes_config")
def may_keep_what_the_example_says_of_a_size_out():
    with sizes.sizes_config.patch(backed_size_oblivious=True):
        assert sizes.sizes_config.backed_size_oblivious
    assert sizes.sizes_config.backed_size_oblivious is False


@piece("sizes.TLS")
def answers_by_the_example():
    env, size = symbolic()
    with env.suppress_guards():
        assert sizes.TLS.suppress_guards and size == 3 and not env.guards
    assert size == 3 and env.guards


@piece("sizes.free_unbacked_symbols", "sizes.SymT", "sizes.symbol_is_type", "sizes.GuardOnDataDependentSymNode")
def knows_sizes_that_are_data():
    env = sizes.ShapeEnv()
    size = env.create_unbacked_symint()
    (symbol,) = sizes.free_unbacked_symbols(size)
    assert sizes.symbol_is_type(symbol, sizes.SymT.UNBACKED_INT)
    with pytest.raises(sizes.GuardOnDataDependentSymNode):
        bool(size == 3)


@piece("sizes.compute_unbacked_bindings", "sizes.rebind_unbacked")
def notes_which_result_is_data():
    env = sizes.ShapeEnv()
    size = env.create_unbacked_symint()
    bindings = sizes.compute_unbacked_bindings(env, size)
    assert list(bindings) == [size.node.expr]
    node = fx.Graph().call_function(torch.sym_sum)
    node.meta["unbacked_bindings"] = bindings
    sizes.rebind_unbacked(env, node, env.create_unbacked_symint())
    assert list(env.unbacked_renamings.values()) == [size.node.expr]


@piece("sizes.sympy_interp", "sizes.PythonReferenceAnalysis")
def runs_an_expression_on_numbers():
    env, size = symbolic()
    expr = (size * 4).node.expr
    assert sizes.sympy_interp(sizes.PythonReferenceAnalysis, {size.node.expr: 5}, expr) == 20


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@piece("modes.watch_applied_functions")
def sees_what_is_applied_with_gradients():
    applied, apply = [], Doubled.apply
    with modes.watch_applied_functions(applied.append):
        with modes.watch_applied_functions(applied.append):
            x = torch.ones(2, requires_grad=True)
            result = apply(x)
        with torch.no_grad():
            apply(x)
    apply(x)
    assert applied == [Doubled, Doubled]
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [2, 2]


@piece("regions.region")
def is_one_call_forward_and_one_backward():
    body = graphs.make_fx(lambda x: (x.sin() * x,))(torch.ones(2))
    holder, graph = nn.Module(), fx.Graph()
    holder.body = body
    called = graph.call_function(regions.region, (graph.get_attr("body"), graph.placeholder("x")), {"label": "it"})
    graph.output((graph.call_function(operator.getitem, (called, 0)),))
    seen = []

    def compiler(module, inputs):
        seen.extend(dict(node.kwargs) for node in module.graph.nodes if node.target is regions.region)
        return compiling.make_boxed_func(module.forward)

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    run = compiling.aot_module_simplified(fx.GraphModule(holder, graph), [x], fw_compiler=compiler)
    run(x)[0].sum().backward()
    assert seen == [{"label": "it"}, {"label": "it", "gradients": [0], "wanted": [0]}]
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())


@piece("sizes.ValueRanges")
def intersects_ranges():
    narrowed = sizes.ValueRanges(0, 10) & sizes.ValueRanges(2, 20)
    assert (narrowed.lower, narrowed.upper) == (2, 10)


@piece("sizes.bound_sympy")
def bounds_an_expression_by_the_ranges_of_its_symbols():
    _, size = symbolic()
    (symbol,) = size.node.expr.free_symbols
    found = sizes.bound_sympy((size // 2 + 1).node.expr, {symbol: sizes.ValueRanges(4, 9)})
    assert (found.lower, found.upper) == (3, 5)


@pytest.mark.parametrize("name", sorted(PIECES))
def test_a_piece_is_there_and_does_what_it_says(name, tmp_path):
    module, _, attribute = name.partition(".")
    assert hasattr(importlib.import_module(f"decomp.torch_internals.{module}"), attribute)
    check = PIECES[name]
    check(tmp_path) if check.__code__.co_argcount else check()


def test_every_piece_is_tried():
    assert {info.name for info in pkgutil.iter_modules(torch_internals.__path__)} == {
        *(module.__name__.rpartition(".")[2] for module in MODULES),
        "versions",
    }
    found = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name in getattr(module, "__all__", vars(module))
        if not name.startswith("_") and name not in LATE
    }
    assert found == set(PIECES)
