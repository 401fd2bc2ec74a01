"""Models of the package transformers by their configuration alone: `hf:llama`, at the size that its authors published,
or `hf:path/to/config.json`. They are made on the meta device, so that they have no weights and take no memory. Nothing
is downloaded, and no code that a configuration names is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import inspect
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from decomp.errors import first_line
from decomp.tools.cli.arguments import CONFIGURED, near
from decomp.tools.cli.terminal import Unusable

_TASKS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForImageClassification",
    "AutoModelForCTC",
    "AutoModel",
)
"""What a model is made for if its configuration names no class: the first that its family has."""
_GENERATING = ("AutoModelForSeq2SeqLM", "AutoModelForCausalLM", "AutoModelForImageTextToText")
_SIZES = {"batch": 1, "tokens": 128}


class Configured(NamedTuple):
    """A model on the meta device, and what its example inputs are made of."""

    model: Any
    config: Any
    inputs: dict[str, torch.Tensor]
    batch: int


def configured(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model of `hf:NAME` or `hf:NAME,KEY=VALUE,…` and example inputs on the meta device, as `make` makes them; it
    takes them in this order, and returns its first output. Raises `Unusable`."""
    made = make(name)
    return first_output(made), tuple(made.inputs.values())


def make(name: str) -> Configured:
    """The model of `hf:NAME` or `hf:NAME,KEY=VALUE,…` and example inputs on the meta device. NAME: a model type of
    transformers, or the path of a configuration; KEY: batch, tokens, or a setting of the configuration, such as
    num_hidden_layers or text_config.num_hidden_layers. Raises `Unusable`."""
    source, *words = name.removeprefix(CONFIGURED).split(",")
    settings = dict(_setting(name, word) for word in words)
    given = {key: settings.pop(key) for key in _SIZES if key in settings}
    if not all(type(size) is int and size > 0 for size in given.values()):
        raise Unusable(f"{name}: batch and tokens must be whole numbers above 0")
    config = _configuration(name, source, settings)
    sizes = {**_SIZES, "tokens": min(_SIZES["tokens"], _most_tokens(config)), **given}
    made_by = _class_of(config)
    try:
        with torch.device("meta"):
            model = made_by(config).eval()
        inputs = _inputs(config, model, sizes["batch"], sizes["tokens"])
    except Unusable:
        raise
    except Exception as error:  # whatever a model's own code raises
        raise Unusable(
            f"{name}: making {made_by.__name__} on the meta device raised {type(error).__name__}: {first_line(error)}\n"
            "  to do: make it in a file, and pass file.py:callable"
        ) from error
    return Configured(model, config, inputs, sizes["batch"])


def _setting(name: str, word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals or not all(part.isidentifier() for part in key.split(".")):
        raise Unusable(f"{name}: {word!r} must be KEY=VALUE, such as tokens=2048 or num_hidden_layers=2")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _configuration(name: str, source: str, settings: Mapping[str, Any]) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported; a configuration may name kernels
    try:
        from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
    except ModuleNotFoundError as error:
        raise Unusable(f"{name} is made by transformers: pip install 'decomp[bench]'") from error
    path = Path(source).expanduser()
    try:
        if source and path.exists():
            written, _ = PretrainedConfig.get_config_dict(str(path), local_files_only=True)
        elif source in CONFIG_MAPPING:
            written = {"model_type": source}
        else:
            raise Unusable(
                f"{name}: no file, folder or model type {source!r}.{near(source, CONFIG_MAPPING.keys())} "
                "Nothing is downloaded: pass the path of a config.json, or the name of a model type of transformers"
            )
        kind = str(written.pop("model_type", ""))
        if kind not in CONFIG_MAPPING:
            raise Unusable(f"{name}: transformers knows no model type {kind!r}, which the configuration names")
        known = AutoConfig.for_model(kind, **written).to_dict()
        for key, value in settings.items():
            _set(name, key, value, written, known)
        found = AutoConfig.for_model(kind, **written)
        found.use_cache = False
    except (Unusable, MemoryError):
        raise
    except Exception as error:  # whatever a configuration's own code raises
        raise Unusable(f"{name}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    return found


def _set(name: str, key: str, value: Any, written: dict[str, Any], known: Any) -> None:
    """Set a setting, `text_config.hidden_size`, in what a configuration is made of; `known`: all settings that it
    has."""
    *parents, last = key.split(".")
    for parent in parents:
        known = known.get(parent) if isinstance(known, dict) else None
        written = written.setdefault(parent, {})
    if not isinstance(known, dict) or last not in known:
        there_are = [*_SIZES, *(each for each in known or () if not each.startswith("_"))]
        raise Unusable(f"{name}: there is no setting {key!r}.{near(last, there_are)}")
    written[last] = value
    if last == "num_hidden_layers" and isinstance(written.get("layer_types"), list):
        written["layer_types"] = written["layer_types"][:value]  # as many kinds as layers


def _class_of(config: Any) -> Callable[[Any], nn.Module]:
    import transformers

    for named in config.architectures or ():
        own: Any = getattr(transformers, str(named), None)
        if isinstance(own, type) and issubclass(own, transformers.PreTrainedModel):  # the file may name anything
            return own
    for task in _TASKS if not _is_dual(config) else _TASKS[-1:]:
        mapping = getattr(transformers, task)._model_mapping
        if type(config) in mapping:
            listed: Any = mapping[type(config)]
            first: Callable[[Any], nn.Module] = listed[0] if isinstance(listed, tuple) else listed
            return first
    raise Unusable(
        f"transformers has no model for a {type(config).__name__}: make it in a file, and pass file.py:callable"
    )


def _is_dual(config: Any) -> bool:
    """Whether a model compares images with texts, as CLIP does: it has two towers and generates neither."""
    import transformers

    towers = hasattr(config, "text_config") and hasattr(config, "vision_config")
    return towers and not any(type(config) in getattr(transformers, task)._model_mapping for task in _GENERATING)


def _most_tokens(config: Any) -> int:
    """How many positions a model has."""
    text = getattr(config, "text_config", None) or config
    return int(getattr(text, "max_position_embeddings", None) or _SIZES["tokens"])


def _inputs(config: Any, model: Any, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """Example inputs of a model."""
    main = str(model.main_input_name)
    shapes: dict[str, Sequence[int]] = {
        "input_ids": (batch, tokens),
        "pixel_values": (batch, *image_shape(config)),
        "input_values": (batch, 16_000),  # one second of speech
        "input_features": (
            batch,
            getattr(config, "num_mel_bins", 80),
            2 * getattr(config, "max_source_positions", 1500),
        ),
    }
    if main not in shapes:
        raise Unusable(f"the inputs of a {type(config).__name__}, {main}, are not known here: pass file.py:callable")
    found = {main: empty_input(main, shapes[main])}
    if config.is_encoder_decoder:
        found["decoder_input_ids"] = empty_input("decoder_input_ids", (batch, tokens))
    if _is_dual(config):
        found |= {name: empty_input(name, shapes[name]) for name in ("input_ids", "pixel_values")}
    return found


def image_shape(config: Any) -> tuple[int, ...]:
    """Channels, height and width of the images that a model takes."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 224)
    return (getattr(vision, "num_channels", 3), *(size if isinstance(size, (tuple, list)) else (size, size)))


def empty_input(name: str, shape: Sequence[int]) -> torch.Tensor:
    """An input of this name on the meta device."""
    dtype = torch.int64 if name.endswith("_ids") else torch.get_default_dtype()
    return torch.zeros(tuple(shape), dtype=dtype, device="meta")


def first_output(made: Configured) -> nn.Module:
    """A module around a model that takes its inputs, under their names, and returns the first output."""
    return _with_inputs(made.inputs)(made.model)


def _with_inputs(names: Mapping[str, Any]) -> type[nn.Module]:

    def initialize(self: Any, model: nn.Module) -> None:
        nn.Module.__init__(self)
        self.model = model

    def forward(self: Any, *values: torch.Tensor) -> Any:
        found = self.model(**dict(zip(names, values)))
        return found[0]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    vars(forward)["__signature__"] = inspect.Signature(parameters)
    return type("FirstOutput", (nn.Module,), {"__init__": initialize, "forward": forward})
