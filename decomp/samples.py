"""Sample calls: an op with concrete arguments, for certificates, explanations and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import ArgumentError, pickle_or_explain, spell_target
from decomp.ir.binding import BindingError, bindings
from decomp.ir.call import kind_of
from decomp.ir.dtypes import name_of
from decomp.ir.ops import of_function, op as op_of
from decomp.ir.schema import Bound
from decomp.rules.library import samples as library_samples
from decomp.rules.pattern_rules import PatternRule
from decomp.rules.rule import from_portable, portable
from decomp.rules.rules import Rule
from decomp.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class UnspecifiedBehaviour:
    """Behaviour that an op leaves unspecified: which of several equal values an index points to, the signs of singular
    vectors. Results are brought to a normal form before they are compared, so that equally valid ones compare equal."""

    results: Callable[[Sample, Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    """The normal form of the results of a call, given the call with its tensors. Differentiable where the results are.
    Must not raise for an invalid result (an index out of range), but keep it different from valid ones."""
    gradients: Callable[[Sample, Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    """The normal form of the gradients of the call's float tensors, where equal values share a gradient."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an op with concrete arguments."""

    overload: Any
    """An ATen overload, or any function that maps to the op."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    exact: str = "float64"
    """The reference of results: "float64", the op on float64 arguments; "own", the op as called, if its result depends
    on the dtype (`nextafter`); "shape", only shape and dtype, if values are undefined (`empty`)."""
    elementwise: bool = False
    """Whether it computes element by element though PyTorch does not tag it as pointwise. It is then measured on points
    of the whole domain."""
    leeway: UnspecifiedBehaviour | None = None
    """Behaviour that the op leaves unspecified, if any."""
    documented: Callable[..., Any] | None = None
    """A function that computes what the op is documented to compute, for ops without a kernel on this device: it is
    then the reference."""
    differentiable: Callable[..., Any] | None = None
    """A function of the same arguments with correct gradients, for ops whose gradients in PyTorch are wrong."""
    parameters: tuple[int, ...] = ()
    """Positions of the tensors that are weights, which are not tested with NaN and infinities."""
    fixed: tuple[int, ...] = ()
    """Positions of the tensors whose values must not be replaced: scales, edges in ascending order."""
    saved: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    """Recomputes the positional arguments that depend on others: what the forward op saved for a backward op."""
    domain: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    """Maps points of the whole range of the dtype to arguments that the op can be run on, a tensor for each argument:
    PyTorch's own kernel would need years for a polynomial of degree 10³⁰."""
    device: torch.device | None = None
    """The device that the call runs on; None: the CPU. Its tensors, and its results, are on the CPU all the same."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Overloads cannot be pickled (torch 2.13), so they travel by name.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        # An overload cannot be pickled. It travels by its name, as `portable` spells it.
        values["overload"] = portable(self.overload)
        pickle_or_explain(values, f"sample {self}", "define its functions at the top level of a module")
        return _sample_of, (values,)

    @classmethod
    def of(
        cls, spelling: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Sample:
        """A call of an op by any spelling: the first overload that accepts these arguments. Raises `ArgumentError`, a
        `ValueError`, if none does."""
        packet = op_of(spelling).packet
        if packet is None:
            raise ArgumentError(f"{spelling} is not a registered operator; pass decomp.Sample(function, args)")
        try:
            fitting = list(bindings(of_function(packet), args, kwargs or {}, kind_of))
        except BindingError as error:
            raise ArgumentError(f"{error}: {', '.join(map(_brief, args))}") from error
        # An overload of lists also takes numbers in a row, but as a list only. Before torch 2.13 that of
        # `count_nonzero` comes before the overload of one number.
        bound = next((each for each in fitting if _takes_as_written(each, args)), fitting[0])
        return cls(getattr(packet, bound.overload or "default"), args, kwargs or {}, **options)

    def run(self) -> Any:
        """The result of the op, or of `documented` if given."""
        here = self.on_its_device()
        return self.to_cpu((self.documented or self.overload)(*here.args, **here.kwargs))

    def on_its_device(self) -> Sample:
        """The same call with its tensors, and a device among its arguments, on the device that it runs on."""
        device = self.device
        if device is None:
            return self

        def placed(leaf: Any) -> Any:
            return leaf.to(device) if isinstance(leaf, torch.Tensor) else device

        return self.replaced(lambda leaf: placed(leaf) if isinstance(leaf, (torch.Tensor, torch.device)) else leaf)

    def to_cpu(self, results: Any) -> Any:
        """Results of the call on its device, on the CPU."""
        return results if self.device is None else pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, results)

    @property
    def tags(self) -> frozenset[Any]:
        """The tags of the op, such as `torch.Tag.pointwise`; of all its overloads if it is given as a function."""
        if isinstance(self.overload, torch._ops.OpOverload):
            return frozenset(self.overload.tags)
        packet = of_function(self.overload).op.packet
        overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
        return frozenset().union(*(overload.tags for overload in overloads))

    @property
    def pointwise(self) -> bool:
        """Whether it computes element by element and draws no random numbers."""
        tags = self.tags
        return (self.elementwise or torch.Tag.pointwise in tags) and torch.Tag.nondeterministic_seeded not in tags

    def completed(self) -> Sample:
        """The same call with the arguments that a forward op saved recomputed from the others."""
        return self if self.saved is None else replace(self, args=self.saved(self.args))

    def replaced(self, new: Callable[[Any], Any]) -> Sample:
        """The same call with each tensor, number or dtype among its arguments replaced."""
        args, kwargs = pytree.tree_map(new, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        return pytree.tensors_in((self.args, dict(self.kwargs)))

    def with_tensors(self, tensors: Iterable[torch.Tensor]) -> Sample:
        """The same call with other tensors, in order."""
        rest = iter(tensors)
        return self.replaced(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf)

    def __str__(self) -> str:
        written = [_brief(arg) for arg in self.args] + [f"{key}={_brief(value)}" for key, value in self.kwargs.items()]
        return f"{spell_target(self.overload)}({', '.join(written)})"


def _takes_as_written(bound: Bound, args: Sequence[Any]) -> bool:
    # By identity: `1 == True` and `1 == 1.0`, so equality would not show that a number was converted.
    return all(any(arg is value for value in bound.arguments.values()) for arg in args)


def _sample_of(values: Mapping[str, Any]) -> Sample:
    return Sample(**{**values, "overload": from_portable(values["overload"])})


def program_of(sample: Sample) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """A program that makes this one call, and its inputs."""
    graph, tensors = fx.Graph(), []

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return graph.placeholder(f"x{len(tensors) - 1}")

    args, kwargs = pytree.tree_map(placed, (tuple(sample.args), dict(sample.kwargs)))
    graph.output(graph.call_function(sample.overload, args, kwargs))
    return fx.GraphModule(nn.Module(), graph), tuple(tensors)


def samples_of(rule: Rule, given: Any = None) -> tuple[Sample, ...]:
    """The sample calls of a rule's op: the given ones (`Sample`s, or tuples of arguments), or those of the library.
    Raises `ArgumentError`, a `ValueError`, if it has none."""
    found = tuple(_sample(rule, one) for one in given) if given is not None else _from_library(rule)
    if not found:
        raise ArgumentError(
            f"there are no sample calls of {rule.op}; pass samples=[(torch.randn(3, 4), 1), …], each the arguments of "
            "a call, or decomp.Sample(overload, args, kwargs)"
        )
    return found


def _from_library(rule: Rule) -> tuple[Sample, ...]:
    if isinstance(rule, PatternRule):
        return ()
    found: tuple[Sample, ...] = library_samples().calls_of(rule.op.packet or rule.op.name)
    return found


def _sample(rule: Rule, given: Any) -> Sample:
    if isinstance(given, Sample):
        return given
    if isinstance(rule, PatternRule):
        args = rule.pattern.values(tuple(given) if isinstance(given, (tuple, list)) else (given,))
        return Sample(rule.pattern, pytree.tree_map(_detach, args))
    return Sample.of(rule.op, tuple(given) if isinstance(given, (tuple, list)) else (given,))


def _detach(leaf: Any) -> Any:
    """A value detached from autograd, as weights of modules require gradients."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) else leaf


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{name_of(value.dtype)}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
