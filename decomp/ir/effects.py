"""The effects and random draws of a call, which verification compares before and after. They follow from schemas, tags
and arguments, for any spelling; nothing is known of functions that no library declares."""

from __future__ import annotations

from dataclasses import dataclass
import enum
from typing import Any

import torch
from torch import fx, nn

from decomp.ir.aliases import statistics
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, call_if_bound, is_projection
from decomp.ir.op_facts import ASSERTS, BATCH_NORMS, COLLECTIVES, MODE_SWITCHES
from decomp.ir.ops import Op, of_function, of_method, of_module_class
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.torch_internals.modes import set_grad_enabled


class Effect(enum.Enum):
    """A kind of effect, by its name in messages. Random draws are counted separately."""

    MUTATION = "mutation"
    ASSERTION = "assertion"
    COLLECTIVE = "collective"
    REGION = "region marker"
    OTHER = "call for its effect alone"


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one call. `fewest`, `most`: how many times it draws random numbers; an edge case such as `p=1` may
    draw or not. An unknown call (`known` is False) may do anything."""

    kinds: frozenset[Effect] = frozenset()
    fewest: int = 0
    most: int = 0
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.kinds) or self.most > 0

    def __str__(self) -> str:
        if not self.known:
            return "unknown effects"
        named = [kind.value for kind in Effect if kind in self.kinds]
        if self.most:
            count = str(self.most) if self.fewest == self.most else f"{self.fewest} to {self.most}"
            named.append(f"{count} random draw{'s' if self.most > 1 else ''}")
        return ", ".join(named) or "no effect"


MARKS = frozenset({Effect.ASSERTION, Effect.REGION, Effect.OTHER})
"""Effects of calls that compute no tensor: any target has them."""
NONE = Effects()
UNKNOWN = Effects(known=False)
WRITES = Effects(frozenset({Effect.MUTATION}))

_PURE_MODULES = ("_operator", "operator", "math", "builtins")


class EffectTable:
    """The effects of the calls of one program. Each distinct callable is looked up once."""

    def __init__(self, owner: nn.Module | None = None) -> None:
        self._owner = owner
        self._by_callable: dict[int, Effects] = {}
        self._by_method: dict[str, Effects] = {}

    def of(self, node: fx.Node) -> Effects:
        """The effects of `node`, beyond returning its value."""
        op = node.op
        if op == "call_function":
            effects = self._of_function(node.target)
        elif op == "call_method":
            effects = self._of_method(str(node.target))
        elif op == "call_module":
            return _of_module(self._owner, node)
        else:
            return NONE
        # Only for these do arguments matter, so binding, which is expensive, is skipped for all other calls.
        if effects.most or effects.kinds == WRITES.kinds:
            effects = _as_called(node, effects)
        elif Effect.ASSERTION in effects.kinds and is_discharged_assertion(node):
            return NONE
        if node.kwargs and (node.kwargs.get("out") is not None or node.kwargs.get("inplace") is True):
            return _writing(effects)
        return effects

    def _of_function(self, function: Any) -> Effects:
        # Keyed by id: hashing an overload costs more than the rest of a visit. The graph keeps its targets alive.
        effects = self._by_callable.get(id(function))
        if effects is None:
            effects = self._by_callable[id(function)] = of_callable(function)
        return effects

    def _of_method(self, name: str) -> Effects:
        effects = self._by_method.get(name)
        if effects is None:
            effects = self._by_method[name] = of_method_named(name)
        return effects


def switches(node: fx.Node) -> bool:
    """Whether a region (no_grad, autocast) begins or ends at a node."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") in MODE_SWITCHES


def recorded_behind(node: fx.Node, recorded: bool) -> bool:
    """Whether gradients are recorded after a node; `recorded`: whether they are before it."""
    return bool(node.args[0]) if node.target is set_grad_enabled else recorded


def regions_of(graph: fx.Graph) -> dict[fx.Node, int]:
    """For each node, the number of region boundaries before it; one of several results belongs to the region of its
    call."""
    found: dict[fx.Node, int] = {}
    current = 0
    for node in graph.nodes:
        current += switches(node)
        # A getitem belongs to its call, even if it comes after the end of the region.
        found[node] = found[node.args[0]] if is_projection(node) else current
    return found


def looks_only(node: fx.Node) -> bool:
    """Whether a node has no use and no effect: an assertion implied by its metadata, or an unused projection."""
    return not node.users and (node.op == "call_function" and is_discharged_assertion(node) or is_projection(node))


def is_discharged_assertion(node: fx.Node) -> bool:
    """Whether a call asserts a fact known before run time: the dtype, device, layout or sizes of its metadata, for all
    values of symbolic sizes."""
    if node.target is aten._assert_scalar.default:
        return node.args[0] is True
    if node.target is not aten._assert_tensor_metadata.default:
        return False
    call = call_if_bound(node)
    value = call.argument("a") if call is not None else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    known = {"size": value.shape, "stride": value.stride(), "dtype": value.dtype, "device": value.device}
    known["layout"] = value.layout
    asserted = {name: call.argument(name) for name in known} if call is not None else {}
    return all(said is None or _plain(said) == _plain(known[name]) for name, said in asserted.items())


def _plain(value: Any) -> Any:
    """A form that can be compared without a guard: symbolic sizes by their expressions."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return torch.device(value)
    return expression(value)


def of_callable(function: Any) -> Effects:
    """The effects of calling `function`, regardless of its arguments; a random one counts as one draw."""
    if isinstance(function, torch._ops.OpOverload):
        return _of_overloads([function], written=function._schema.is_mutable)
    if isinstance(function, torch._ops.HigherOrderOperator):
        return UNKNOWN
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None) or ""
    if name in MODE_SWITCHES:
        return Effects(frozenset({Effect.REGION}))
    if getattr(function, "effects_known", None) is not None:
        return NONE if function.effects_known else UNKNOWN  # a pattern
    spelling = of_function(function)
    if spelling.op.packet is not None:
        return _of_packet(spelling.op, spelling.inplace)
    if name.startswith(ASSERTS) and module.startswith("torch"):
        return Effects(frozenset({Effect.ASSERTION}))
    if spelling.inplace:
        return WRITES
    return NONE if module in _PURE_MODULES or name.startswith("sym_") else UNKNOWN


def of_method_named(name: str) -> Effects:
    """The effects of calling the method with this name, regardless of its arguments."""
    spelling = of_method(name)
    if spelling.op.packet is None:
        return WRITES if spelling.inplace else NONE
    return _of_packet(spelling.op, spelling.inplace)


def _of_packet(op: Op, written: bool) -> Effects:
    packet = op.packet
    return _of_overloads([getattr(packet, overload) for overload in packet.overloads()], written) if packet else UNKNOWN


def _of_overloads(overloads: list[torch._ops.OpOverload], written: bool) -> Effects:
    kinds = {Effect.MUTATION} if written else set()
    namespace, _, name = overloads[0]._schema.name.partition("::")
    if namespace in COLLECTIVES:
        kinds.add(Effect.COLLECTIVE)
    elif name.startswith(ASSERTS):
        kinds.add(Effect.ASSERTION)
    # A call that returns nothing and writes nothing is made for an effect that no schema states.
    elif not written and not any(overload._schema.returns for overload in overloads):
        kinds.add(Effect.OTHER)
    draws = int(_is_random(name, overloads))
    return Effects(frozenset(kinds), draws, draws) if kinds or draws else NONE


def _is_random(name: str, overloads: list[torch._ops.OpOverload]) -> bool:
    if name.endswith("_backward"):  # has the tag of its forward, but replays the draw
        return False
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def _as_called(node: fx.Node, effects: Effects) -> Effects:
    """The effects of a call whose callable may draw: dropout does not outside of training."""
    try:
        call = bound_call(node)
    except BindingError:
        return effects
    if call is None:
        return effects
    if call.op.short in BATCH_NORMS:
        return WRITES if statistics(node) else NONE
    return _drawing(call.arguments, effects) if effects.most else effects


def _drawing(arguments: dict[str, Any], effects: Effects) -> Effects:
    train = arguments.get("train", arguments.get("training", True))
    chance = arguments.get("dropout_p", arguments.get("dropout"))
    # Only beside `train` does `p` mean the chance to drop: it is the exponent of a norm elsewhere.
    if chance is None and "train" in arguments:
        chance = arguments.get("p")
    chance = chance if isinstance(chance, (int, float)) else None
    if train is False or chance == 0:
        return Effects(effects.kinds) if effects.kinds else NONE
    layers = arguments.get("num_layers")
    if isinstance(layers, int):  # a recurrent network draws between its layers
        return Effects(effects.kinds, layers - 1, layers - 1)
    # With p = 1 `dropout` multiplies by zeros without a draw, and `native_dropout` draws all the same.
    return Effects(effects.kinds, 0 if chance == 1 else 1, 1)


def _writing(effects: Effects) -> Effects:
    return Effects(effects.kinds | {Effect.MUTATION}, effects.fewest, effects.most, effects.known)


def _of_module(owner: nn.Module | None, node: fx.Node) -> Effects:
    if owner is None:
        return UNKNOWN
    try:
        module = owner.get_submodule(str(node.target))
    except AttributeError:
        return UNKNOWN
    cls: Any = type(module)
    op = of_module_class(cls)
    # Whether statistics are written depends on flags of the module, which the op does not show.
    if op.packet is None or hasattr(module, "running_mean"):
        return UNKNOWN
    effects = _of_packet(op, written=False)
    if effects.most:
        effects = _drawing(_settings(module), effects)
    return _writing(effects) if getattr(module, "inplace", False) else effects


def _settings(module: nn.Module) -> dict[str, Any]:
    """The arguments that a module would pass to its op, by the op's names."""
    settings: dict[str, Any] = {"train": module.training}
    for name in ("p", "dropout", "num_layers"):
        if hasattr(module, name):
            settings[name] = getattr(module, name)
    return settings
