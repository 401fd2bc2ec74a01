"""Models to run on backends: common architectures, small, with random weights, and two at full size. Each builder
returns a module in evaluation mode and a function that draws inputs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from decomp_rules.samples import LSTM, UNet

Drawn = Callable[[], tuple[Any, ...]]
Built = tuple[nn.Module, Drawn]
VOCABULARY = 100
TEXT: Mapping[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class Output(nn.Module):
    """A model of transformers, whose inputs go by position, and one of its outputs."""

    def __init__(self, model: nn.Module, inputs: str, output: str) -> None:
        super().__init__()
        self.model, self.inputs, self.output = model, inputs.split(), output

    def forward(self, *args: Any) -> Tensor:
        found: Tensor = getattr(self.model(**dict(zip(self.inputs, args))), self.output)
        return found


class Step(nn.Module):
    """One decoding step of a language model: a token, and keys and values of the tokens before it, layer by layer.
    Returns logits, and keys and values with the token's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        cache = DynamicCache(list(zip(past[::2], past[1::2])))
        found = self.model(token, past_key_values=cache, use_cache=True)
        after = ((layer.keys, layer.values) for layer in found.past_key_values.layers)
        return (found.logits, *(each for pair in after for each in pair))


class StepWithCache(Step):
    """The same with the cache of transformers as an input."""

    def forward(self, token: Tensor, cache: Any) -> tuple[Tensor, ...]:
        return super().forward(token, *(each for layer in cache.layers for each in (layer.keys, layer.values)))


def tokens(batch: int = 2, length: int = 8, vocabulary: int = VOCABULARY) -> tuple[Tensor]:
    """Random tokens, (batch, length)."""
    return (torch.randint(3, vocabulary, (batch, length)),)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=32, n_layer=2, n_head=2, **TEXT))


def gpt2() -> Built:
    """Two layers of 32, 8 tokens."""
    return Output(_gpt2(), "input_ids", "logits"), tokens


def _past() -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 2, 8, 16) for _ in range(4))


def gpt2_step() -> Built:
    """One token after 8, with keys and values as tensors."""
    return Step(_gpt2()), lambda: (*tokens(2, 1), *_past())


def gpt2_step_with_cache() -> Built:
    """One token after 8, with a `DynamicCache`."""
    from transformers import DynamicCache
    from transformers.integrations.executorch import register_dynamic_cache_export_support

    register_dynamic_cache_export_support()

    def drawn() -> tuple[Any, ...]:
        past = _past()
        return (*tokens(2, 1), DynamicCache(list(zip(past[::2], past[1::2]))))

    return StepWithCache(_gpt2()), drawn


def bert() -> Built:
    """Two layers of 32; of the second row 3 tokens are padding."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        vocab_size=VOCABULARY,
    )
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    return Output(BertModel(config), "input_ids attention_mask", "last_hidden_state"), lambda: (*tokens(), mask)


def llama() -> Built:
    """Two layers of 32 with grouped queries, 8 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        use_cache=False,
        **TEXT,
    )
    return Output(LlamaForCausalLM(config), "input_ids", "logits"), tokens


def t5() -> Built:
    """Encoder and decoder of two layers of 32."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        use_cache=False,
    )
    model = T5ForConditionalGeneration(config)
    return Output(model, "input_ids decoder_input_ids", "logits"), lambda: (*tokens(), *tokens())


def vit() -> Built:
    """Two layers of 32, images of 16 in patches of 4."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=16, patch_size=4
    )
    return Output(ViTModel(config), "pixel_values", "last_hidden_state"), lambda: (torch.randn(2, 3, 16, 16),)


class Residual(nn.Module):
    """The block of ResNet-18."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        down = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.shortcut = down if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


def resnet18(width: int = 8, size: int = 32, classes: int = 10, batch: int = 4) -> Built:
    """ResNet-18; full size is a width of 64, images of 224, 1000 classes."""
    widths = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
    blocks = (Residual(width * inner, width * outer, stride) for inner, outer, stride in widths)
    stem = (nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes))
    return nn.Sequential(*stem, *blocks, *head), lambda: (torch.randn(batch, 3, size, size),)


SMALL: Mapping[str, Callable[[], Built]] = {
    "GPT-2": gpt2,
    "GPT-2, one step": gpt2_step,
    "GPT-2, one step, DynamicCache": gpt2_step_with_cache,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "ViT": vit,
    "ResNet-18": resnet18,
    "U-Net": lambda: (UNet(), lambda: (torch.randn(2, 1, 16, 16),)),
    "LSTM": lambda: (LSTM(), lambda: (torch.randn(16, 5, 6),)),
}


def full_gpt2() -> Built:
    """GPT-2 small, 124 million parameters; 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return Output(GPT2LMHeadModel(GPT2Config(use_cache=False)), "input_ids", "logits"), lambda: tokens(1, 64, 50257)


FULL: Mapping[str, Callable[[], Built]] = {"gpt2": full_gpt2, "resnet18": lambda: resnet18(64, 224, 1000, 1)}


def built(make: Callable[[], Built]) -> Built:
    """A model with the same weights each time, in evaluation mode, and its inputs."""
    torch.manual_seed(0)
    model, drawn = make()
    return model.eval(), drawn
