"""`partition`: splits a program between a chip and the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
import functools
import math
from typing import Any

import torch
from torch import fx
from typing_extensions import Unpack

from decomp.capture.inputs.exported_guards import ExportedGuards
from decomp.capture.lowered_module import add_input_check
from decomp.costs.counting import BYTES
from decomp.costs.model import Cost, price_by, unit_of
from decomp.derive.pipeline import CaptureRequest
from decomp.errors import ArgumentError, CaptureError, NotLowered
from decomp.graphs.graph_builder import checks_inputs, is_aten
from decomp.ir.call import CALLS, is_host, metadata
from decomp.loading import load as program_of
from decomp.lowering import Lowering, lower
from decomp.partitioning.assignment import CHIP, Assignment, AssignmentProblem, cheapest, supported_on_chip
from decomp.partitioning.choices import Choices, Prices, choices_of
from decomp.partitioning.limited import cheapest_with
from decomp.partitioning.more_ops import MoreOps, more_ops
from decomp.partitioning.outcome import Partition, hosted, parts_of, prices_of
from decomp.partitioning.parts import Cut, cuts_of, program_of_parts
from decomp.rules.keywords import PartitionOptions
from decomp.rules.options import CHECKS, Options, verb
from decomp.rules.rules import Rules
from decomp.rules.target import Target
from decomp.torch_internals.pytree import tensors_in

Transfer = float | Callable[[int], float]
HostCost = float | Cost


def _price(name: str, value: Any) -> None:
    if callable(value) or value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ArgumentError(f"{name}= must be the price of a byte, a number of 0 or more, or a function, not {value!r}")


def _device(name: str, value: Any) -> None:
    try:
        torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f'{name}= must be the device of the program, as {name}="cpu", not {value!r}') from error


def _limit(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ArgumentError(f"{name}= must be the most parts on the chip, 0 or more, or None, not {value!r}")


_CHECKS = {
    "args": CHECKS["args"],
    "kwargs": CHECKS["kwargs"],
    "host": _device,
    "transfer": _price,
    "host_cost": _price,
    "parts": _limit,
}


@verb("partition", PartitionOptions, _CHECKS)
def partition(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    to: Target,
    host: str | torch.device = "cpu",
    transfer: Transfer | None = None,
    host_cost: HostCost | None = None,
    parts: int | None = None,
    **given: Unpack[PartitionOptions],
) -> Partition:
    """Split a program between a chip and the host, and return the `Partition`: a program of parts, of which those on
    the chip are lowered to the target and verified, and those on the host stay as they are.

    - `model`, `args`, `kwargs`: as for `lower`; the program must have metadata, so a module needs `args`.
    - `host`: the device of the program, on which the other parts run.
    - `transfer`: the price of a byte that crosses, in either direction, or a function of the bytes of a tensor,
      `lambda size: 5_000 + size`; 1 by default. A value is transferred once, however many calls read it there;
      parameters, and buffers that are only read, are on the side that uses them.
    - `host_cost`: the price of a byte that a call reads or writes on the host, or a function of a `Call`; 100 by
      default.
    - `cost`: the price of a call of the target; by default the costs of its file, or one for each byte that it reads or
      writes. With other units than bytes, `transfer` and `host_cost` must be given, in the same unit.
    - `parts`: the most parts on the chip; by default any number. With a limit scipy searches for the cheapest
      assignment, for 30 seconds at most, and the result says how far from it what was found may be.
    - The other options are those of `lower`.

    A call runs on the chip if `lower` can lower it and if that is cheaper in all, transfers included. Without a limit
    the assignment is a minimum cut, and no other is cheaper. Calls that draw random numbers or communicate stay on the
    host, and so does what writes inputs and buffers, at the end. Raises `ArgumentError`, `CaptureError`, `RuleError`,
    `CostError`, `VerificationError`.
    """
    options = Options.of(given)
    prices = _prices(to, options, transfer, host_cost)
    source = CaptureRequest.of(model, {**given, "args": args, "kwargs": kwargs})
    program = _functional(source, options)
    _require_parts_possible(program, torch.device(host))
    choices = choices_of(program, to, options, prices)
    return _Search(to, str(host), options, prices, choices, parts).partition()


def _prices(to: Target, options: Options, transfer: Transfer | None, host_cost: HostCost | None) -> Prices:
    chip = options.policy.cost or to.costs or BYTES
    unit = unit_of(chip) or "the unit of cost="
    # Prices in two units have no sum.
    if chip is not BYTES and (transfer is None or host_cost is None):
        missing = " and ".join(n for n, v in (("transfer=", transfer), ("host_cost=", host_cost)) if v is None)
        raise ArgumentError(
            f"the costs of calls on {to.name} are in {unit}, and {missing} must be in the same unit\n"
            f"  to do: pass transfer= and host_cost=, each the price of a byte in {unit} or a function; or "
            "cost=decomp.costs.bytes, and all is in bytes"
        )
    return Prices(chip, _host_price(host_cost), _transfer_price(transfer), unit)


def _host_price(given: HostCost | None) -> Cost:
    each = _HOST_BYTE if given is None else given
    return each if callable(each) else lambda call: each * BYTES(call)


def _transfer_price(given: Transfer | None) -> Callable[[int], float]:
    each = 1.0 if given is None else given
    return _checked(each) if callable(each) else lambda size: each * size


def _checked(function: Callable[[int], float]) -> Callable[[int], float]:
    return lambda size: price_by("transfer=", function, size, "{} bytes".format)


_HOST_BYTE = 100.0
"""The chip is taken to be a hundred times as fast as the host, so that it gets nearly all that it can run."""


def _functional(source: CaptureRequest, options: Options) -> fx.GraphModule:
    """The program without mutation but for writes at its end, with parameters as attributes: lowered by no rules to a
    target without ops."""
    nothing = Target("no ops", [])
    # `lower` itself makes programs functional, with all that it knows of writes and state; no second way is needed.
    how = Options(rules=Rules(), partial=True, simplify=False, training=options.training)
    lowering = lower(
        source.model,
        to=nothing,
        options=how,
        args=source.args,
        kwargs=source.kwargs,
        tracer_class=source.tracer_class,
        dynamic_shapes=source.dynamic_shapes,
    )
    program = program_of(lowering, None, None, None).root
    guards = ExportedGuards.of(program.graph, program)
    if guards is not None:
        for node in filter(checks_inputs, program.graph.nodes):
            program.graph.erase_node(node)
        add_input_check(program, guards)
    return program


def _require_parts_possible(program: fx.GraphModule, host: torch.device) -> None:
    calls = [node for node in program.graph.nodes if node.op in CALLS]
    kept = next((node for node in calls if node.op == "call_module"), None)
    # What computes nothing, or sizes alone, has no call of an op, and so no dialect.
    ops = is_aten(program.graph) or all(map(is_host, calls))
    if not ops or kept is not None or any(metadata(n) is None for n in calls if n.users):
        raise CaptureError(
            "partition needs the shapes of the program, and every call of it as an op\n"
            "  to do: pass example inputs, args=(x,), or an ExportedProgram"
        )
    devices = {tensor.device.type for node in program.graph.nodes for tensor in tensors_in(metadata(node))}
    # On the meta device a partition can be planned, and not run.
    if devices - {host.type, "meta"}:
        found = " and ".join(sorted(devices))
        raise ArgumentError(
            f"the program is on {found}, and host= is {str(host)!r}\n"
            f"  to do: pass host={sorted(devices - {host.type})[0]!r}, or move the model and its inputs"
        )


@dataclass
class _Search:
    """Assigns the calls of one program, and lowers the parts."""

    to: Target
    host: str
    options: Options
    prices: Prices
    choices: Choices
    limit: int | None

    def partition(self) -> Partition:
        # It ends: each round takes calls from the chip.
        while True:
            problem = self.choices.problem(self.prices.transfer)
            assignment = self.assign(problem)
            cuts = tuple(cuts_of(self.choices, assignment))
            lowerings, refused = self.lowered(cuts)
            if not refused:
                return self.made(problem, assignment, cuts, lowerings)
            # Planned as a whole they could be lowered, but not among the calls of their part: they stay on the host.
            self.choices = self.choices.without(refused)

    def assign(self, problem: AssignmentProblem) -> Assignment:
        """The assignment of the calls."""
        return cheapest(problem) if self.limit is None else cheapest_with(problem, self.limit)

    def more_ops(self, choices: Choices) -> tuple[MoreOps, ...]:
        """The ops that would leave fewer parts."""

        def again(ops: tuple[str, ...]) -> Assignment:
            found = choices_of(choices.program, self.to | set(ops), self.options, self.prices)
            return cheapest(found.problem(self.prices.transfer))

        return more_ops(choices, cheapest(choices.problem(self.prices.transfer)), again)

    def lowered(self, cuts: Sequence[Cut]) -> tuple[dict[str, Lowering], dict[str, str]]:
        """The lowerings of the parts on the chip, by name; and the calls that could not be lowered, with the reason."""
        # What trains as a whole has gradients in each part, which the metadata of its inputs does not show.
        training = True if self.choices.trains else self.options.training
        # A lock is of a whole program.
        options = replace(self.options, training=training, partial=False, lock=None)
        found: dict[str, Lowering] = {}
        refused: dict[str, str] = {}
        for cut in cuts:
            if cut.side == CHIP:
                try:
                    found[cut.name] = lower(cut.module, to=self.to, options=options)
                except NotLowered as error:
                    refused.update(_refused(error, cut))
        return found, refused

    def made(
        self,
        problem: AssignmentProblem,
        assignment: Assignment,
        cuts: tuple[Cut, ...],
        lowerings: Mapping[str, Lowering],
    ) -> Partition:
        modules = {cut.name: lowerings[cut.name].result if cut.side == CHIP else cut.module for cut in cuts}
        return Partition(
            self.to.name,
            self.host,
            program_of_parts(self.choices, cuts, modules),
            parts_of(self.choices, cuts, lowerings),
            assignment.price,
            assignment.at_least,
            prices_of(problem, assignment),
            self.prices.unit,
            supported_on_chip(problem).price,
            hosted(self.choices, assignment),
            self.limit,
            functools.partial(self.more_ops, self.choices),
            self.choices,
            cuts,
        )


def _refused(error: NotLowered, cut: Cut) -> dict[str, str]:
    names = {node.name for node in cut.nodes}
    found = {
        name: f"{blocker.op} cannot be lowered among the calls of its part"
        for blocker in error.blockers
        for name in blocker.nodes
        if name in names
    }
    # What is blocked may have been made by a pass, with a name of its own: the whole part goes then.
    return found or dict.fromkeys(names, "cannot be lowered as a part")
