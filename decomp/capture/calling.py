"""The calling convention of a captured program's module. Export's own module flattens and compares pytrees and checks
constraints before each call, which costs forty times a small op and a graph break under `torch.compile`. Where the
inputs are plain arguments, a Python signature and one comparison per input do the same. Dtypes are checked as well,
which export's module does not do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import fx
from torch.export import ExportedProgram

from decomp.capture.inputs.assumptions import assumptions_of
from decomp.capture.inputs.checks import ANYTHING, InputCheck, expected_input, scope_of
from decomp.capture.lowered_module import install_input_check
from decomp.torch_internals import pytree


class LoweredProgram(ExportedProgram):
    """A lowered `ExportedProgram`, whose module checks its inputs like that of a lowered module. (A program that is
    loaded from a file is a plain `ExportedProgram` again.)"""

    _reads_strides = False
    """Whether the source has ops that read memory by strides."""
    _more_checks: tuple[Callable[[fx.GraphModule], None], ...] = ()
    """Functions that add further checks to its module."""

    def module(self, check_guards: bool = True) -> fx.GraphModule:
        """As `ExportedProgram.module`; with `check_guards=False` exactly that."""
        if not check_guards:
            return super().module(check_guards=False)
        module = _with_input_check(self, super().module(check_guards=False), None, plainly=False)
        for add in self._more_checks:
            add(module)
        return module


def unlift(program: ExportedProgram, source: fx.Graph | None = None) -> fx.GraphModule:
    """The module of an exported program; `source` is the graph it was lowered from, if any. Its `train()` and `eval()`
    are those of a plain module, as the effect of the training flag is already in the graph."""
    if isinstance(program, LoweredProgram) and source is None:
        module = program.module()
    else:
        module = _with_input_check(program, program.module(check_guards=False), source, plainly=True)
    # torch.export shadows both on the instance with functions that raise.
    for name in ("train", "eval"):
        module.__dict__.pop(name, None)
    return module


def _with_input_check(
    program: ExportedProgram, module: fx.GraphModule, source: fx.Graph | None, *, plainly: bool
) -> fx.GraphModule:
    """The module of a program, with a check of its inputs. Unless `plainly`, it keeps its pytree calling convention:
    the result may be passed to torch.export again, which expects that."""
    inputs = module.graph.find_nodes(op="placeholder")
    scope = scope_of(module.graph, source or module.graph)
    if isinstance(program, LoweredProgram):
        scope = replace(scope, strides=scope.strides or program._reads_strides)
    names = [str(node.target) for node in inputs]
    values = [node.meta.get("val", ANYTHING) for node in inputs]
    expected = [expected_input(name, value, scope) for name, value in zip(names, values)]
    check = InputCheck(names, expected, assumptions=assumptions_of(program, inputs))
    _remove_export_hooks(module)
    if plainly and _takes_plain_arguments(names, program):
        _use_plain_signature(module, names, program.call_spec.out_spec)
    else:
        check.codegen = module.graph._codegen
    install_input_check(module, check)
    return module


def _remove_export_hooks(module: fx.GraphModule) -> None:
    """Remove the hooks of torch.export, which check what is checked here."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        hooks.clear()
    for more in (module._forward_pre_hooks_with_kwargs, module._forward_hooks_always_called):
        more.clear()


def _takes_plain_arguments(names: list[str], program: ExportedProgram) -> bool:
    """Whether all inputs are plain arguments, positional or keyword."""
    spec = program.call_spec.in_spec
    # The names become parameters of generated code.
    if spec is None or not all(map(str.isidentifier, names)):
        return False
    named = list(spec.child(1).context)
    by_name = {name: 0 for name in named}
    flat = spec == pytree.tree_structure(((0,) * (len(names) - len(named)), by_name))
    # Keyword arguments must be the last placeholders, in order, or a signature would bind them differently.
    return flat and names[len(names) - len(named) :] == named


def _is_plain(spec: pytree.TreeSpec) -> bool:
    """Whether the result is one tensor, or a tuple or list of them."""
    return spec.is_leaf() or spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())


def _use_plain_signature(module: fx.GraphModule, names: Sequence[str], out: pytree.TreeSpec | None) -> None:
    """Make a module take its inputs as positional or keyword arguments."""
    if out is not None and _is_plain(out):
        # That of torch.export flattens the arguments by pytree at each call.
        module.graph._codegen = fx.graph.CodeGen()
        output = module.graph.output_node()
        output.args = (pytree.tree_unflatten(list(output.args[0]), out),)
    else:
        codegen = module.graph._codegen
        by_place = pytree.tree_structure(((0,) * len(names), {}))
        codegen.pytree_info = codegen.pytree_info._replace(orig_args=list(names), in_spec=by_place)
