"""Each piece of private API of PyTorch that the package uses is there, and does what it is used for."""

import copy
import importlib
import pkgutil
from typing import Any

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
    pytree,
    schemas,
    sizes,
    transforms,
)

MODULES = (archives, compiling, fakes, graphs, modes, pytree, schemas, sizes, transforms)
PIECES = {}
LATE = ("annotations", "torch", "fx", "nn", "Any", "Callable", "Iterator", "contextlib", "importlib", "sys", "dispatch",
        "functools", "predispatch", "pyfunctorch", "TorchFunctionMode")
"""Names that a module needs for itself."""


def piece(*names):
    def named(check):
        PIECES.update(dict.fromkeys(names, check))
        return check

    return named


def symbolic(size=3):
    env = sizes.ShapeEnv()
    context = sizes.StatelessSymbolicContext(dynamic_sizes=[sizes.DimDynamic.DYNAMIC])
    mode = fakes.FakeTensorMode(shape_env=env)
    return env, mode.from_tensor(torch.zeros(size), symbolic_context=context).shape[0]


@piece("archives.SYM_OPS")
def operators_of_sizes():
    assert torch.sym_max in archives.SYM_OPS


@piece("archives.SCHEMA_VERSION")
def numbers_the_format_of_programs():
    assert len(archives.SCHEMA_VERSION) == 2 and all(isinstance(number, int) for number in archives.SCHEMA_VERSION)


@piece("archives.PT2ArchiveReader")
def reads_members_without_executing_them(tmp_path):
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    torch.export.save(program, tmp_path / "model.pt2")
    assert any(n.startswith("models/") for n in archives.PT2ArchiveReader(str(tmp_path / "model.pt2")).get_file_names())


@piece("compiling.aot_module_simplified", "compiling.make_boxed_func")
def hands_graphs_of_overloads_to_a_compiler():
    seen = []

    def compiler(module, inputs):
        return seen.extend(n.target for n in module.graph.nodes) or compiling.make_boxed_func(module.forward)

    module = fx.symbolic_trace(lambda x: (torch.relu(x),))
    run = compiling.aot_module_simplified(module, [torch.ones(2)], fw_compiler=compiler)
    assert run(torch.tensor([-1.0, 2.0]))[0].tolist() == [0.0, 2.0] and torch.ops.aten.relu.default in seen


@piece("compiling.default_partition", "compiling.recomputing_partition")
def part_a_joint_graph_with_what_is_kept_between_its_parts():
    def kept(partition):
        counts = []

        def compiler(graph, _):
            counts.append(len(graph.graph.output_node().args[0]) - 1)
            return compiling.make_boxed_func(graph.forward)

        def backend(module, inputs):
            return compiling.aot_module_simplified(
                module, inputs, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition
            )

        torch._dynamo.reset()
        x = torch.ones(4, requires_grad=True)
        torch.compile(lambda x: x.sin().detach() * x.cos() * x.exp(), backend=backend)(x)
        return counts[0]

    assert kept(compiling.default_partition) > kept(compiling.recomputing_partition) == 1


@piece("compiling.donate_nothing")
def empties_the_list_of_saved_tensors_that_the_backward_pass_may_write_into():
    lists: list[Any] = []

    def compiler(graph, _):
        donated = fakes.TracingContext.get().fw_metadata.bw_donated_idxs
        lists.append(list(donated))
        compiling.donate_nothing()
        lists.append(donated)
        return compiling.make_boxed_func(graph.forward)

    def backend(module, inputs):
        return compiling.aot_module_simplified(module, inputs, fw_compiler=compiler)

    torch.compile(lambda x: x.exp().exp(), backend=backend)(torch.ones(2, requires_grad=True))
    assert lists[0] and lists[1] == []


@piece("compiling.outputs_as_traced")
def tells_the_outputs_that_are_viewed_as_traced():
    found: list[Any] = [compiling.outputs_as_traced()]

    def compiler(graph, _):
        found.append(compiling.outputs_as_traced())
        return compiling.make_boxed_func(graph.forward)

    def backend(module, inputs):
        return compiling.aot_module_simplified(module, inputs, fw_compiler=compiler)

    torch.compile(lambda x: (x * 2, x.view(-1, x.shape[0])), backend=backend, dynamic=True)(torch.ones(2, 3))
    none = frozenset()
    assert found == [(none, none, none), ({1}, none, {0})]


@piece("compiling.inductor_config", "compiling.functorch_config", "compiling.compiler_config")
def can_be_patched():
    with compiling.compiler_config.patch(cache_key_tag="mine"):
        assert compiling.compiler_config.cache_key_tag == "mine"
    with compiling.inductor_config.patch({"max_autotune": True}):
        assert compiling.inductor_config.max_autotune
    with compiling.functorch_config.patch(enable_autograd_cache=False):
        assert not compiling.functorch_config.enable_autograd_cache


@piece("compiling.list_mode_options", "compiling.list_options")
def names_the_options_of_inductor():
    assert "max-autotune" in compiling.list_mode_options()
    assert any(name.replace("-", "_") == "max_autotune" for name in compiling.list_options())


@piece("compiling.select_decomp_table")
def is_a_table_by_overload():
    assert all(isinstance(key, torch._ops.OperatorBase) for key in compiling.select_decomp_table())


@piece("compiling.export_to_torch_ir")
def captures_functions_of_torch():
    graph = compiling.export_to_torch_ir(nn.GELU(), (torch.ones(2),)).graph
    assert any(node.target is nn.functional.gelu for node in graph.nodes)


@piece("compiling.compile_fx_inner", "compiling.compile_fx", "compiling.metrics", "compiling.GraphLowering")
def has_what_counts_what_inductor_wrote():
    assert callable(compiling.compile_fx_inner) and compiling.compile_fx.inductor_metrics_log.name
    assert isinstance(compiling.metrics.num_bytes_accessed, int)
    assert hasattr(compiling.GraphLowering, "save_output_code")


@piece("fakes.FakeTensorMode", "fakes.FakeTensor", "fakes.FakeTensorConfig")
def has_metadata_and_no_data():
    with fakes.FakeTensorMode():
        made = torch.ones(2, 3) @ torch.ones(3, 4)
    assert type(made) is fakes.FakeTensor and made.shape == (2, 4) and made.device.type == "cpu"
    assert fakes.FakeTensorConfig.debug is False


@piece("fakes.DataDependentOutputException", "fakes.DynamicOutputShapeException", "fakes.UnsupportedOperatorException")
def is_raised_where_fakes_cannot_tell():
    with fakes.FakeTensorMode() as mode, pytest.raises(fakes.DataDependentOutputException):
        torch.ones(2).sum().item()
    with mode, pytest.raises(fakes.DynamicOutputShapeException):
        torch.ones(2).nonzero()
    assert issubclass(fakes.UnsupportedOperatorException, RuntimeError)


@piece("fakes.unset_fake_temporarily")
def makes_a_real_tensor():
    with fakes.FakeTensorMode(), fakes.unset_fake_temporarily():
        assert type(torch.ones(2)) is torch.Tensor


@piece("fakes.active_fake_mode", "graphs.BodyModule")
def traces_bodies_in_a_mode_of_its_own():
    graph = fx.Graph()
    graph.output(graph.call_function(torch.mul, (graph.placeholder("x"), graph.get_attr("table"))))
    table = torch.tensor([2.0])
    body = graphs.lazy_graph_module({"table": table}, graph, "Made", graphs.BodyModule)
    assert body.table is table and copy.deepcopy(body)(torch.ones(1)).item() == 2.0
    with fakes.FakeTensorMode() as mode:
        assert fakes.active_fake_mode() is mode
        assert isinstance(body(torch.ones(1)), fakes.FakeTensor)


@piece("fakes.TracingContext", "fakes.detect_fake_mode")
def knows_the_mode_of_what_is_compiled():
    mode = fakes.FakeTensorMode()
    assert fakes.TracingContext.try_get() is None
    assert fakes.detect_fake_mode([mode.from_tensor(torch.ones(2))]) is mode


@piece("fakes.fake_with_attributes", "fakes.dispatch_keys")
def is_what_the_constructor_makes():
    mode, device = fakes.FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu")
    one, two = (torch.empty(2, 3, device="meta") for _ in range(2))
    first = fakes.FakeTensor(mode, one, device)
    like = fakes.fake_with_attributes(two, vars(first))
    assert (like.shape, like.device, vars(like)) == (first.shape, first.device, vars(first))
    assert fakes.dispatch_keys(like) == fakes.dispatch_keys(first) != fakes.dispatch_keys(torch.ones(2))


@piece("fakes.fakes_compute_it_otherwise", "fakes.fake_impls")
def tells_where_fakes_have_ways_of_their_own():
    aten = torch.ops.aten
    assert fakes.fakes_compute_it_otherwise(aten.convolution.default)
    assert fakes.fakes_compute_it_otherwise(aten.full.default)
    assert not fakes.fakes_compute_it_otherwise(aten.mul.Tensor)


@piece("graphs.PyTreeCodeGen", "graphs.DropoutNd")
def is_the_kind_of():
    module = torch.export.export(nn.ReLU(), (torch.ones(2),)).module()
    assert isinstance(module.graph._codegen, graphs.PyTreeCodeGen)
    assert issubclass(nn.Dropout, graphs.DropoutNd) and issubclass(nn.AlphaDropout, graphs.DropoutNd)


@piece("graphs.lazy_graph_module", "graphs.LazyGraphModule")
def generates_code_when_it_is_run():
    graph = fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    module = graphs.lazy_graph_module({}, graph, "Made")
    assert "_code" not in vars(module)
    assert module(torch.tensor([-1.0])).item() == 0.0


@piece("graphs.change_class")
def makes_a_module_one_of_another_kind():
    one, other = (fx.symbolic_trace(nn.ReLU()) for _ in range(2))
    graphs.change_class(one, type("Other", (fx.GraphModule,), {"twice": lambda self, x: 2 * self(x)}))
    assert one.recompile() and one.twice(torch.ones(1)).item() == 2.0 and not hasattr(other, "twice")


@piece("graphs.skip_frame")
def is_compiled_within_alone():
    seen, inner = [], lambda x: x + 1
    outer = graphs.skip_frame(lambda x: inner(x) * 2)
    compiled = torch.compile(outer, backend=lambda module, _: seen.append(module.code) or module.forward)
    assert compiled(torch.ones(1)).item() == 4.0 and len(seen) == 1 and "* 2" not in seen[0]


@piece("graphs.share_getitems")
def merges_equal_items():
    module = fx.symbolic_trace(lambda x: x.max(0)[0] + x.max(0)[0])
    first, second = (n for n in module.graph.nodes if n.target == "max")
    second.replace_all_uses_with(first)
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    graphs.share_getitems(module, program.graph_signature, [])
    assert sum(getattr(n.target, "__name__", "") == "getitem" for n in module.graph.nodes) == 1


@piece("graphs.get_data_attr")
def is_the_data_of_a_tensor_in_graphs_of_dynamo():
    graphs_of_dynamo = []
    torch.compile(lambda x: x.data + 1, backend=lambda module, _: graphs_of_dynamo.append(module) or module.forward)(
        torch.ones(2))
    assert graphs.get_data_attr in [node.target for node in graphs_of_dynamo[0].graph.nodes]


@piece("graphs.make_fx")
def traces_overloads():
    traced = graphs.make_fx(torch.relu)(torch.ones(2))
    assert torch.ops.aten.relu.default in [node.target for node in traced.graph.nodes]


@piece("modes.set_grad_enabled")
def switches_gradients_as_the_public_one_does():
    assert modes.set_grad_enabled in [n.target for n in _traced_without_gradients().graph.nodes]


def _traced_without_gradients():
    class Region(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                return x + 1

    return graphs.make_fx(Region(), pre_dispatch=True)(torch.ones(2))


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


@piece("transforms.depth", "transforms.current_level", "transforms.enter_vmap", "transforms.leave_vmap",
       "transforms.is_wrapped", "transforms.unwrapped", "transforms.outside_of_all", "transforms.unwrap_for_grad")
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


@piece("schemas.all_schemas", "schemas.schemas_of", "schemas.FunctionSchema", "schemas.Argument")
def lists_what_is_registered():
    found = schemas.schemas_of("aten::relu")
    assert isinstance(found[0], schemas.FunctionSchema) and isinstance(found[0].arguments[0], schemas.Argument)
    assert "aten::relu" in {schema.name for schema in schemas.all_schemas()}
    assert schemas.schemas_of("aten::no_such_op") == []


@piece("sizes.ShapeEnv", "sizes.DimDynamic", "sizes.StatelessSymbolicContext", "sizes.statically_known_true")
def makes_a_size_symbolic():
    env, size = symbolic()
    assert isinstance(size, torch.SymInt) and not sizes.statically_known_true(size == 3)
    assert sizes.statically_known_true(size * 2 == size + size) and not env.guards


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


@piece("sizes.ValueRanges")
def intersects_ranges():
    narrowed = sizes.ValueRanges(0, 10) & sizes.ValueRanges(2, 20)
    assert (narrowed.lower, narrowed.upper) == (2, 10)


@pytest.mark.parametrize("name", sorted(PIECES))
def test_a_piece_is_there_and_does_what_it_says(name, tmp_path):
    module, _, attribute = name.partition(".")
    assert hasattr(importlib.import_module(f"decomp.torch_internals.{module}"), attribute)
    check = PIECES[name]
    check(tmp_path) if check.__code__.co_argcount else check()


def test_every_piece_is_tried():
    assert {info.name for info in pkgutil.iter_modules(torch_internals.__path__)} == {
        module.__name__.rpartition(".")[2] for module in MODULES
    }
    found = {f"{module.__name__.rpartition('.')[2]}.{name}" for module in MODULES
             for name in getattr(module, "__all__", vars(module)) if not name.startswith("_") and name not in LATE}
    assert found == set(PIECES)
