"""Whole models for benchmarks: the architectures that people run, a few layers of each, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from decomp_rules.samples.models import LSTM, Example, ResNet, UNet

VOCABULARY = 1000
TEXT: Mapping[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class Output(nn.Module):
    """One output of a model of the package transformers, whose inputs go by position."""

    def __init__(self, model: nn.Module, inputs: str, output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model.eval(), inputs, output

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(**{self.inputs: x}), self.output)
        return found


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this model is made by transformers: pip install 'decomp[bench]'") from error
    return transformers


def _tokens(batch: int, time: int) -> tuple[Tensor]:
    return (torch.randint(3, VOCABULARY, (batch, time)),)


def gpt2() -> Example:
    """Four layers of 256, 128 tokens."""
    made = _transformers()
    config = made.GPT2Config(n_embd=256, n_layer=4, n_head=4, n_positions=128, use_cache=False, **TEXT)
    return Output(made.GPT2LMHeadModel(config), "input_ids", "logits"), _tokens(2, 128)


def bert() -> Example:
    """Four layers of 256, 128 tokens."""
    made = _transformers()
    config = made.BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=128,
        **TEXT,
    )
    return Output(made.BertModel(config), "input_ids", "last_hidden_state"), _tokens(2, 128)


def llama() -> Example:
    """Four layers of 256 with grouped queries, 128 tokens."""
    made = _transformers()
    config = made.LlamaConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=704,
        max_position_embeddings=128,
        use_cache=False,
        **TEXT,
    )
    return Output(made.LlamaForCausalLM(config), "input_ids", "logits"), _tokens(2, 128)


def vit() -> Example:
    """Four layers of 192, images of 96 in patches of 8."""
    made = _transformers()
    config = made.ViTConfig(
        hidden_size=192, num_hidden_layers=4, num_attention_heads=3, intermediate_size=768, image_size=96, patch_size=8
    )
    return Output(made.ViTModel(config), "pixel_values", "last_hidden_state"), (torch.randn(2, 3, 96, 96),)


MODELS: Mapping[str, Callable[[], Example]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "ViT": vit,
    "ResNet": lambda: (ResNet(width=32).eval(), (torch.randn(4, 3, 64, 64),)),
    "U-Net": lambda: (UNet(width=24).eval(), (torch.randn(2, 1, 64, 64),)),
    "LSTM": lambda: (LSTM(features=64, width=128).eval(), (torch.randn(8, 6, 64),)),
}
"""By name; each makes a module in evaluation mode and its inputs."""
