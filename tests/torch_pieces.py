"""The first half of the pieces of private API of PyTorch that `test_torch_internals.py` tries, and how a piece is
named: archives, compiling, fakes, graphs."""

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

from decomp.torch_internals import archives, compiling, fakes, graphs, modes, sizes

PIECES = {}


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


@piece("compiling.as_boxed", "compiling.is_boxed")
def has_the_inputs_passed_as_one_list():
    given = []

    def compiler(module, inputs):
        return compiling.as_boxed(lambda values: given.append(type(values)) or module.forward(*values))

    module = fx.symbolic_trace(lambda x: (torch.relu(x),))
    compiling.aot_module_simplified(module, [torch.ones(2)], fw_compiler=compiler)(torch.ones(2))
    assert given == [list] and compiling.is_boxed(compiling.as_boxed(lambda values: values))
    assert not compiling.is_boxed(lambda values: values)


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


@piece("compiling.current_compilation")
def numbers_the_compilation_and_says_why_there_is_another():
    found: list[Any] = [compiling.current_compilation()]

    def backend(module, inputs):
        found.append(compiling.current_compilation())
        return module.forward

    run = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    run(torch.ones(2)), run(torch.ones(3))
    outside, (number, reason), (again, why) = found
    assert outside == ("", "") and reason == "" and again == f"{number.partition('/')[0]}/1"
    assert "size mismatch at index 0. expected 2, actual 3" in why


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


@piece("fakes.lstm_states_right")
def gives_the_states_of_an_lstm_their_shape():
    with fakes.lstm_states_right(), fakes.FakeTensorMode():
        _, (hidden, cell) = nn.LSTM(3, 4)(torch.ones(5, 2, 3))
    assert hidden.shape == cell.shape == (1, 2, 4)


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
    like = fakes.fake_with_attributes(two, device, vars(first))
    assert (like.shape, like.device, vars(like)) == (first.shape, first.device, vars(first))
    assert fakes.dispatch_keys(like) == fakes.dispatch_keys(first) != fakes.dispatch_keys(torch.ones(2))


@piece("fakes.on_new_storage")
def copies_a_tensor_without_data():
    meta = torch.empty_strided((2, 3), (1, 2), device="meta", dtype=torch.float16)
    made = fakes.on_new_storage(meta)
    assert (made.shape, made.stride(), made.dtype, made.device) == (meta.shape, meta.stride(), meta.dtype, meta.device)
    assert made.untyped_storage().nbytes() == 12
    assert made.untyped_storage()._cdata != meta.untyped_storage()._cdata


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
        torch.ones(2)
    )
    assert graphs.get_data_attr in [node.target for node in graphs_of_dynamo[0].graph.nodes]


@piece("graphs.export_below_autograd")
def has_the_ops_of_a_program_whose_composite_ops_stay():
    module, x = nn.Linear(3, 2), torch.ones(4, 3)
    program = graphs.export_below_autograd(module, (x,), None, None)
    assert str(program.graph) == str(torch.export.export(module, (x,)).run_decompositions({}).graph)
    assert torch.equal(program.module()(x), module(x))


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
