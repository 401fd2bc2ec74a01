"""Verifies a program on pairs from the two graphs and the recorded expansions alone, without trusting the code that
built the new graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
import operator
from typing import Any

import torch
from torch import fx

from decomp.graphs.template import ExpansionTemplate
from decomp.ir.arguments import zipped
from decomp.ir.call import is_projection, metadata, projected
from decomp.ir.dtypes import is_complex
from decomp.ir.effects import is_discharged_assertion, regions_of
from decomp.ir.module import ProgramGraph
from decomp.metadata.strides import inverse
from decomp.metadata.symbolic_sizes import same_shape
from decomp.ops import aten
from decomp.proof.correspondence import (
    EffectsChanged,
    MetadataChanged,
    NotAsRecorded,
    OutputsChanged,
    ValueLost,
    require_same_region,
)
from decomp.proof.replay import replay_expansion, same, same_call
from decomp.type_conversion.pair import real_dtype
from decomp.type_conversion.pair_programs import border_conversions, describe_border
from decomp.type_conversion.pair_recording import is_complex_call, reads_sizes
from decomp.type_conversion.pairs import MERGE_COMPLEX, SPLIT_COMPLEX, flatten_image


def verify_pairs(own: ProgramGraph) -> str:
    """Verify a graph on pairs against its source; returns a sentence that says what was verified. Inputs and outputs
    are the same. Every call on real numbers is the same call on the images of its operands. A complex call became its
    expansion on the parts of its operands, and its result a pair of its shape. Only calls at the border, and those that
    stay complex, take or return complex tensors. Raises a `VerificationError` for the first violation."""
    assert own.before is not None and own.edges is not None
    replay = _PairsReplay(own, own.before.graph, own.edges.origin)
    for node in own.before.graph.nodes:
        replay.visit(node)
    replay.require_nothing_left()
    own.graph.lint()
    at_border, refused = describe_border(own.graph), sum(isinstance(why, str) for why in own.why.values())
    return (
        f"{len(own.why) - refused} complex calls computed on pairs of real numbers, each by its expansion on the parts "
        f"of its operands; every other call is the same; {refused or 'none'} left inside"
        + (f" ({at_border})" if at_border else "")
    )


class _PairsReplay:
    """One walk over the source that ticks off the new nodes of each source node; none may be left over."""

    def __init__(self, found: ProgramGraph, source: fx.Graph, origin: Mapping[fx.Node, fx.Node]) -> None:
        self.graph, self.names = found.graph, {node.name for node in source.nodes}
        self.templates = {node: why for node, why in found.why.items() if not isinstance(why, str)}
        self.images: dict[fx.Node, Any] = {}
        """The image of each source node: a node, a pair of nodes, or a tuple of either."""
        self.regions = {**regions_of(source), **regions_of(found.graph)}
        """The region (no_grad, autocast) of each node of either graph."""
        self.parts: dict[tuple[fx.Node, int], tuple[fx.Node, fx.Node]] = {}
        """The parts of complex tensors that are split at the border, by region."""
        self.whole: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        """For each complex tensor that is merged at the border: its parts."""
        self.own: dict[tuple[fx.Node, fx.Node, int], fx.Node] = {}
        """By image, source node and region: the copy of the image made in that region."""
        self.copies: dict[fx.Node, fx.Node] = {}
        self.made: dict[fx.Node, list[fx.Node]] = {}
        self.constants = {
            # By identity, as in the replay of expansions.
            id(found.constants[str(node.target)]): node
            for node in found.graph.find_nodes(op="get_attr")
            if str(node.target) in found.constants
        }
        self.border = set(border_conversions(found.graph))
        at_border: set[fx.Node] = set()
        for node in found.graph.nodes:
            # Only nodes of expansions have a chain of rules.
            if node in found.chains:
                self.made.setdefault(origin[node], []).append(node)
            elif node.target is SPLIT_COMPLEX and node in self.border and node.name not in self.names:
                at_border |= self._taken_apart(node)
            elif node.target is MERGE_COMPLEX and node in self.border and node.name not in self.names:
                at_border |= self._put_together(node)
            elif node.target is aten.clone.default and node.name not in self.names:
                self.own[node.args[0], origin[node], self.regions[node]] = node
                at_border.add(node)
        for node in found.graph.nodes:
            if node not in found.chains and node not in at_border and node not in self.constants.values():
                # The first: later ones of the same origin are projections.
                self.copies.setdefault(origin[node], node)

    def _taken_apart(self, pair: fx.Node) -> set[fx.Node]:
        """Record the parts of a complex tensor, which the border selects from `view_as_real`."""
        wanted = [(aten.select.int, (pair, -1, place)) for place in (0, 1)]
        first, second = (next((u for u in pair.users if (u.target, u.args) == each), None) for each in wanted)
        if first is None or second is None:
            raise NotAsRecorded(f"{pair.name!r} is not split into two parts", pair)
        self._require_region(pair, first, second)
        self.parts[pair.args[0], self.regions[pair]] = first, second
        return {pair, first, second}

    def _put_together(self, whole: fx.Node) -> set[fx.Node]:
        """Record the parts of a merged complex tensor, whose dimensions may have been permuted to restore strides."""
        (pair,), at_border = whole.all_input_nodes, {whole}
        order: Any = None
        if pair.target is aten.permute.default:
            at_border.add(pair)
            order, pair = pair.args[1], pair.all_input_nodes[0]
        parts = pair.args[0]
        if pair.target is not aten.stack.default or len(parts) != 2 or pair.args[1] != -1:
            raise NotAsRecorded(f"{whole.name!r} is not merged from two parts", whole)
        at_border.add(pair)
        if order is not None:
            before = [part.args[1] for part in parts]
            # The permutation after the stack must undo the one before it.
            if any([*inverse(list(each)), len(each)] != list(order) for each in before):
                raise NotAsRecorded(f"{whole.name!r} has its dimensions in another order", whole)
            at_border |= set(parts)
            parts = [part.args[0] for part in parts]
        self._require_region(*at_border)
        self.whole[whole] = tuple(parts)
        return at_border

    def _require_region(self, *nodes: fx.Node) -> None:
        """Require that calls are in one region."""
        if len({self.regions[node] for node in nodes}) > 1:
            raise EffectsChanged(f"{nodes[0].name!r} is made in two regions of no_grad or autocast", nodes[0])

    def visit(self, node: fx.Node) -> None:
        """Find the image of a node, and compare it with the node."""
        template = self.templates.get(node)
        if template is not None:
            self.images[node] = self._expanded(node, template)
            self._require_parts(node, self.images[node], metadata(node))
        elif self._is_part(node):
            self.images[node] = projected(node, self.images[node.args[0]])
        elif node not in self.copies:
            if not is_discharged_assertion(node):
                raise ValueLost(f"{node.name!r} is missing from the graph on pairs", source=node)
        else:
            self.images[node] = self._copied(node, self.copies.pop(node))

    def _is_part(self, node: fx.Node) -> bool:
        """Whether a node selects from the image of another, which is a tuple: of results, or of known sizes."""
        whole = self.images.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        takes = is_projection(node) or node.target is operator.getitem and isinstance(node.args[1], int)
        return takes and isinstance(whole, (tuple, list))

    def _copied(self, node: fx.Node, new: fx.Node) -> fx.Node:
        """The image of a call that was copied, with complex operands merged before it."""
        if node.op == "output" and new.op != "output":
            raise OutputsChanged("the output is not that of the source", new, node)
        operands: dict[fx.Node, Any] = {}
        for given in node.all_input_nodes:
            image = self.images[given]
            if is_complex(metadata(given)) and reads_sizes(node) and not is_complex_call(new):
                operands[given] = next(self._operand(given, new))
                continue
            operands[given] = self._whole_of(image, metadata(given), new, operands.values())
            if node.op == "output" and isinstance(image, fx.Node):
                operands[given] = self.own.get((image, given, self.regions[new]), image)
        if not same_call(new, node.target, node.args, node.kwargs, operands) or new.op != node.op:
            raise NotAsRecorded(f"{new.name!r} is not a copy of {node.name!r}", new, node)
        require_same_region(new, node, self.regions)
        return new

    def _whole_of(self, image: Any, value: Any, user: fx.Node, taken: Collection[Any]) -> Any:
        """The operand of a call that stays complex: pairs become their complex tensors, other values are unchanged. If
        two complex tensors have the same parts, the one that is not `taken` by another operand."""
        if isinstance(image, fx.Node) or not isinstance(value, (torch.Tensor, tuple, list)):
            return image
        if isinstance(value, torch.Tensor):
            return self._made_of(image, user, taken)
        return tuple(self._whole_of(each, of, user, taken) for each, of in zip(image, value))

    def _made_of(self, pair: Any, user: fx.Node, taken: Collection[Any]) -> fx.Node | None:
        """The operand of a call that was merged from these parts."""
        at = self.regions[user]
        made = [each for each in user.all_input_nodes if each in self.whole and self.regions[each] == at]
        # Two complex inputs may have been made of the same parts; operands then differ by identity only.
        alike = [each for each in made if same(self.whole[each], pair)]
        return next((each for each in alike if each not in taken), alike[0] if alike else None)

    def _expanded(self, node: fx.Node, template: ExpansionTemplate) -> Any:
        """Match the new nodes of a complex call, in order, with its expansion on the parts of its operands; returns the
        image of the call."""
        given = [value for operand in node.all_input_nodes for value in self._operand(operand, node)]
        result, made = replay_expansion(node, template, given, iter(self.made.pop(node, ())), self.constants)
        for new in made:
            require_same_region(new, node, self.regions)
        return self._of_its_region(node, result)

    def _of_its_region(self, node: fx.Node, result: Any) -> Any:
        """The image of a call, with copies of nodes from other regions: a result has a gradient exactly if the region
        of its call records one."""
        if isinstance(result, (tuple, list)):
            return tuple(self._of_its_region(node, each) for each in result)
        at = self.regions[node]
        # The main region (0) has no markers, so that everything is in it.
        if not isinstance(result, fx.Node) or not isinstance(metadata(result), torch.Tensor) or not at:
            return result
        # Inputs exist before every region.
        made_at = 0 if result.op in ("placeholder", "get_attr") else self.regions[result]
        copied = result if made_at == at else self.own.get((result, node, at))
        if copied is None:
            raise EffectsChanged(f"{result.name!r} is in another region of no_grad or autocast", result, node)
        return copied

    def _operand(self, given: fx.Node, at: fx.Node) -> Iterator[Any]:
        """The inputs of an expansion for one operand: a real tensor, or the parts of each complex one."""
        image, value = self.images[given], metadata(given)
        taken_apart = isinstance(value, torch.Tensor) and value.is_complex() and not isinstance(image, tuple)
        yield from flatten_image(self._parts_in(image, at) if taken_apart else image)

    def _parts_in(self, image: fx.Node, at: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The parts of a complex tensor that was split in the region of a call."""
        found = self.parts.get((image, self.regions[at]))
        if found is None:
            raise EffectsChanged(f"{image.name!r} is not split in the region of {at.name!r}", image, at)
        return found

    def _require_parts(self, node: fx.Node, image: Any, expected: Any) -> None:
        """The image of a complex value is a pair, whose parts have its shape and real dtype."""
        for of, each in zipped(expected, image):
            if not isinstance(of, torch.Tensor):
                continue
            parts = each if isinstance(each, tuple) else (each,)
            if len(parts) != 1 + of.is_complex():
                raise NotAsRecorded(f"the image of {node.name!r} is not a pair", source=node)
            for part in parts:
                known, dtype = metadata(part), real_dtype(of.dtype)
                if known.dtype != dtype or not same_shape(of.shape, known.shape):
                    said = f"{list(known.shape)} of {known.dtype}, expected {list(of.shape)} of {of.dtype}"
                    raise MetadataChanged(f"{part.name!r} is {said}", part, node)

    def require_nothing_left(self) -> None:
        """Require that every new node has a source, and that only calls at the border, or kept ones, are complex."""
        left = [*self.copies.values(), *(node for nodes in self.made.values() for node in nodes)]
        if left:
            raise NotAsRecorded(f"{left[0].name!r} comes from no node of the source", left[0])
        stay = {
            image
            for node, image in self.images.items()
            if node not in self.templates and is_complex_call(node) and isinstance(image, fx.Node)
        }
        for node in self.graph.nodes:
            if is_complex_call(node) and node not in self.border and node not in stay:
                raise NotAsRecorded(f"{node.name!r} is complex, inside a graph on pairs", node)
