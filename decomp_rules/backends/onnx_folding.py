"""What products and convolutions take in of the nodes around them: a batch norm behind a layer of known weights becomes
part of these (Jacob et al., Quantization and Training of Neural Networks, 2018, section 3.2), which are computed in
float64 and rounded once; a padding by zeros before a convolution becomes part of its own; and a product of matrices
whose batches are merged before it and split behind it is one of the batches as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper
import torch

from decomp_rules.backends.onnx_tidying import Nodes, names_read, needed

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


@dataclass
class Folding:
    """The nodes of a graph while products and convolutions take others in."""

    nodes: Nodes
    known: Mapping[str, torch.Tensor]
    """By name, the weights and constants whose elements are known."""
    shapes: Mapping[str, Sequence[Any]]
    """By name, the shapes of values."""
    results: Set[str]
    unique: Callable[[str], str]
    new: dict[str, torch.Tensor] = field(default_factory=dict)
    """The weights that layers read instead of theirs, by name."""

    def __post_init__(self) -> None:
        self._readers = Counter(names_read(self.nodes))
        self._makers = {name: each for each in self.nodes for name in each.output}

    def folded(self) -> Nodes:
        """The nodes without those that others took in."""
        fold = {"BatchNormalization": self._fold_norm, "Reshape": self._fold_batches, "Conv": self._fold_padding}
        taken = [each for each in self.nodes if each.op_type in fold and fold[each.op_type](each)]
        gone = {id(each) for each in taken}
        return needed([each for each in self.nodes if id(each) not in gone], self.results)

    def _maker(self, name: str, *kinds: str) -> onnx.NodeProto | None:
        """The node of one of these kinds that makes a value."""
        found = self._makers.get(name)
        return found if found is not None and found.op_type in kinds else None

    def _is_read_once(self, name: str) -> bool:
        return self._readers[name] == 1 and name not in self.results

    def _take(self, node: onnx.NodeProto, behind: onnx.NodeProto) -> bool:
        """Have a node make what one behind it made."""
        node.output[0] = behind.output[0]
        self._makers[node.output[0]] = node
        _note(node, behind)
        return True

    def _fold_norm(self, norm: onnx.NodeProto) -> bool:
        """Whether the layer before a batch norm computes both from now on: what it computes with is known, and nothing
        else reads it."""
        layer = self._maker(norm.input[0], *_LAYERS)
        if layer is None or not self._is_read_once(norm.input[0]) or not _is_scaled_by_1(layer):
            return False
        if not all(name in self.known for name in (*layer.input[1:], *norm.input[1:])):
            return False
        own, others = ([self.known[name] for name in names] for names in (layer.input[1:], norm.input[1:]))
        names = [self.unique(f"{name}/normalized") for name in (layer.input[1], [norm.input[2], *layer.input[2:]][-1])]
        self.new.update(zip(names, _normalized(layer, own, norm, others)))
        layer.input[1:] = names
        return self._take(layer, norm)

    def _fold_padding(self, layer: onnx.NodeProto) -> bool:
        """Have a convolution do the padding before it, which goes if nothing else reads it."""
        padding = self._maker(layer.input[0], "Pad")
        amounts = None if padding is None else self._zeros_around(padding)
        pads = next((each for each in layer.attribute if each.name == "pads"), None)
        if padding is not None and amounts is not None and pads is not None:
            pads.ints[:] = [old + new for old, new in zip(pads.ints, amounts)]
            layer.input[0] = padding.input[0]
            _note(layer, padding)
        return False

    def _zeros_around(self, padding: onnx.NodeProto) -> list[int] | None:
        """The amounts of a padding of images by zeros, before their dimensions and then behind; None of another."""
        amounts, *value = (self.known.get(each) for each in padding.input[1:])
        if amounts is None or any(each is None or each.any() for each in value) or _attribute(padding, "mode", None):
            return None
        rank = len(amounts) // 2
        before, behind = amounts[:rank].tolist(), amounts[rank:].tolist()
        if min(before + behind) < 0 or any((*before[:2], *behind[:2])):
            return None
        return [*before[2:], *behind[2:]]

    def _fold_batches(self, split: onnx.NodeProto) -> bool:
        """Whether a product takes its operands as they are, whose batches were merged for it, and splits no more."""
        product = self._maker(split.input[0], "MatMul")
        if product is None or not self._is_read_once(split.input[0]):
            return False
        merged = [self._maker(name, "Reshape") for name in product.input]
        wholes = [each.input[0] for each in merged if each is not None]
        pairs = [(split.output[0], split.input[0]), *zip(wholes, product.input)]
        if len(wholes) < 2 or not all(name in self.shapes for pair in pairs for name in pair):
            return False
        batches = {str(self.shapes[whole][:-2]) for whole, _ in pairs}
        if len(batches) > 1 or not all(_has_same_matrices(*map(self.shapes.get, pair)) for pair in pairs):
            return False
        product.input[:] = wholes
        return self._take(product, split)


def _has_same_matrices(one: Any, other: Any) -> bool:
    return min(len(one), len(other)) > 2 and str(one[-2:]) == str(other[-2:])


def _is_scaled_by_1(layer: onnx.NodeProto) -> bool:
    return all(_attribute(layer, name, 1.0) == 1.0 for name in ("alpha", "beta"))


def _normalized(
    layer: onnx.NodeProto, own: Sequence[torch.Tensor], norm: onnx.NodeProto, others: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """The weight w·s and the bias (b − mean)·s + β of a layer and a batch norm, where s = γ / √(var + eps)."""
    scale, shift, mean, variance = (each.double() for each in others)
    factor = scale / torch.sqrt(variance + _attribute(norm, "epsilon", 1e-5))
    weight, *bias = own
    offset = bias[0].double() - mean if bias else -mean
    yield (weight.double() * _per_output(layer, weight, factor)).to(weight.dtype)
    yield (offset * factor + shift).to(weight.dtype)


def _per_output(layer: onnx.NodeProto, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """A factor for each output of a layer, in a shape that its weight is multiplied by."""
    if layer.op_type == "Gemm":
        return factor.reshape(-1, 1) if _attribute(layer, "transB", 0) else factor
    space = [1] * (weight.dim() - 2)
    if layer.op_type == "Conv":
        return factor.reshape(-1, 1, *space)
    groups = _attribute(layer, "group", 1)  # the weight is (inputs, outputs / groups, ...), its inputs by group
    rows = factor.reshape(groups, 1, -1, *space)
    return rows.expand(-1, weight.shape[0] // groups, *rows.shape[2:]).flatten(0, 1)


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def _note(node: onnx.NodeProto, taken: onnx.NodeProto) -> None:
    """Record in the metadata of a node what else it computes."""
    said = {each.key: each.value for each in taken.metadata_props}
    sources = [said[key] for key in ("decomp.source", "decomp.folded") if key in said]
    if not sources:
        return
    noted = next((each for each in node.metadata_props if each.key == "decomp.folded"), None)
    noted = noted if noted is not None else node.metadata_props.add(key="decomp.folded")
    noted.value = "; ".join(each for each in (noted.value, *sources) if each)
