"""Methods of a model of transformers that is made by its configuration alone: prefill, decode and the vision tower,
each a program that shares the weights of the one model. A cache is any object of transformers that holds tensors: a
method takes and returns these, and the model sees a copy of the object around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from decomp.tools.cli.arguments import near
from decomp.tools.cli.configured_models import Configured, empty_input, first_output, image_shape
from decomp.tools.cli.terminal import Unusable

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CACHES = {"past_key_values": "past_key_values", "cache": "cache", "cache_params": "cache_params"}
"""By name in what a model returns: the argument by which it takes its cache. Releases of transformers, and models
without attention, differ."""
_ENCODED = "encoder_outputs"
Export = Callable[[nn.Module, tuple[Any, ...]], "ExportedProgram"]


def methods_of(name: str, made: Configured, wanted: Sequence[str], export: Export) -> dict[str, ExportedProgram]:
    """The methods of these names of one model, exported; they share its weights. Raises `Unusable`, `CaptureError`."""
    for each in wanted:
        if each not in METHODS:
            there_are = ", ".join(METHODS)
            raise Unusable(f"{name}: there is no method {each!r}.{near(each, METHODS)} Available: {there_are}")
    model = _Exported(made, export)
    found = {}
    for each in wanted:
        try:
            found[each] = METHODS[each](model)
        except Unusable as error:
            raise Unusable(f"{name} has no {each}: {error}") from error
    return found


class Prefill(nn.Module):
    """A whole sequence: the first output, and the tensors of the cache."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)
        self.output = _Unseen()

    def forward(self, *values: torch.Tensor) -> Any:
        self.output.value = output = self.model(**dict(zip(self.names, values)), use_cache=True)
        return output[0], _tensors_in(_cache_of(output)[1])


class Decode(nn.Module):
    """One token after those of a cache, whose tensors it takes and returns; `cache` is the object that holds them."""

    def __init__(self, model: nn.Module, names: Sequence[str], taken_as: str, cache: Any) -> None:
        super().__init__()
        self.model, self.names, self.taken_as = model, tuple(names), taken_as
        self.cache = _Unseen(cache)

    def forward(self, cached: Sequence[torch.Tensor], *values: Any) -> Any:
        cache = _with_tensors(self.cache.value, cached)
        inputs = {name: (value,) if name == _ENCODED else value for name, value in zip(self.names, values)}
        output = self.model(**inputs, **{self.taken_as: cache}, use_cache=True)
        return output[0], _tensors_in(_cache_of(output)[1])


class Vision(nn.Module):
    """The features of images, as the language model gets them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> Any:
        model: Any = self.model
        found = model.get_image_features(pixel_values=pixel_values)
        return getattr(found, "pooler_output", found)


class _Unseen:
    """A value that a module holds, and that torch.export does not look into."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


class _Exported:
    """The methods of one model; prefill is exported once, also for decode, which begins with its cache."""

    def __init__(self, made: Configured, export: Export) -> None:
        self.made, self.export = made, export

    def forward(self) -> ExportedProgram:
        """A whole sequence without a cache."""
        return self.export(first_output(self.made), tuple(self.made.inputs.values()))

    def prefill(self) -> ExportedProgram:
        """A whole sequence, with the cache as an output."""
        return self._prefilled[0]

    @functools.cached_property
    def _prefilled(self) -> tuple[ExportedProgram, Any]:
        if not self.made.model.can_generate():
            raise Unusable(f"{type(self.made.model).__name__} does not generate text")
        prefill = Prefill(self.made.model, [*self.made.inputs])
        return self.export(prefill, tuple(self.made.inputs.values())), prefill.output.value

    def decode(self) -> ExportedProgram:
        """One token more, with the cache as inputs and outputs."""
        config, (_, output) = self.made.config, self._prefilled
        token = "decoder_input_ids" if config.is_encoder_decoder else "input_ids"
        inputs = {token: empty_input(token, (self.made.batch, 1))}
        if config.is_encoder_decoder:
            inputs[_ENCODED] = _like(output.encoder_last_hidden_state)
        taken_as, cache = _cache_of(output)
        cached = [*map(_like, _tensors_in(cache))]
        return self.export(Decode(self.made.model, [*inputs], taken_as, cache), (cached, *inputs.values()))

    def vision(self) -> ExportedProgram:
        """The features of images."""
        taken = getattr(self.made.model, "get_image_features", None)
        if taken is None:
            raise Unusable(f"{type(self.made.model).__name__} has no get_image_features")
        if "image_grid_thw" in inspect.signature(taken).parameters:
            raise Unusable(
                "its images are patches of any number of images, whose sizes are data: pass file.py:callable"
            )
        images = empty_input("pixel_values", (self.made.batch, *image_shape(self.made.config)))
        return self.export(Vision(self.made.model), (images,))


METHODS: Mapping[str, Callable[[_Exported], ExportedProgram]] = {
    "forward": _Exported.forward,
    "prefill": _Exported.prefill,
    "decode": _Exported.decode,
    "vision": _Exported.vision,
}
"""By name, as on the command line."""


def _like(value: torch.Tensor) -> torch.Tensor:
    """A tensor on the meta device with these sizes."""
    return torch.empty_strided(tuple(value.shape), value.stride(), dtype=value.dtype, device="meta")


def _cache_of(output: Any) -> tuple[str, Any]:
    """The cache that a model returned, and the argument by which it takes it."""
    for name, taken_as in _CACHES.items():
        found = getattr(output, name, None)
        if found is not None:
            return taken_as, found
    raise Unusable(f"{type(output).__name__} has no cache")


def _tensors_in(cache: Any) -> list[torch.Tensor]:
    """The tensors that an object holds, each once."""
    return list({id(each): each for each in _walk(cache, set())}.values())


def _walk(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in seen and not isinstance(value, (type, nn.Module)):
        seen.add(id(value))
        held = value if isinstance(value, (list, tuple)) else value if isinstance(value, dict) else None
        held = getattr(value, "__dict__", {}) if held is None else held
        for each in held.values() if isinstance(held, dict) else held:
            yield from _walk(each, seen)


def _with_tensors(cache: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """A copy of an object that holds these tensors in the place of its own."""
    return copy.deepcopy(cache, {id(old): new for old, new in zip(_tensors_in(cache), tensors)})
