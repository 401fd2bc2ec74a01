"""Small random-weight models of the kinds that users lower: language, vision, recurrent, convolutional. Each builder
returns a module and example inputs; the same seed gives the same weights."""

from __future__ import annotations

from collections.abc import Callable
import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

Built = tuple[nn.Module, tuple[Any, ...]]
VOCABULARY = 50
KERNEL_CALLS = {"fallback_by_default": True}
"""Options with which Inductor calls PyTorch's kernels and has no C++ compiled, for what is true whatever it calls."""
TEXT: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


class Head(nn.Module):
    """A model of `transformers` with its tensor inputs by position and one tensor as output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.model, self.names, self.output = model, names, output

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(self.model(**dict(zip(self.names, args))), self.output)
        return result


def _tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, 6))


def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        **TEXT,
    )
    return Head(GPT2LMHeadModel(config), ("input_ids",), "logits"), (_tokens(),)


def bert() -> Built:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        vocab_size=VOCABULARY,
    )
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    return Head(BertModel(config), ("input_ids", "attention_mask"), "last_hidden_state"), (_tokens(), mask)


def llama() -> Built:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        use_cache=False,
        **TEXT,
    )
    return Head(LlamaForCausalLM(config), ("input_ids",), "logits"), (_tokens(),)


def vit() -> Built:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Head(ViTModel(config), ("pixel_values",), "last_hidden_state"), (torch.randn(2, 3, 16, 16),)


def t5() -> Built:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, use_cache=False
    )
    model = T5ForConditionalGeneration(config)
    return Head(model, ("input_ids", "decoder_input_ids"), "logits"), (_tokens(), _tokens())


def convnext() -> Built:
    from transformers import ConvNextConfig, ConvNextModel

    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4, image_size=32)
    return Head(ConvNextModel(config), ("pixel_values",), "last_hidden_state"), (torch.randn(2, 3, 32, 32),)


class Residual(nn.Module):
    """Two convolutions with batch norm and a shortcut; activations and the sum in place."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        self.shortcut = shortcut if stride > 1 or inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.shortcut(x)
        result: torch.Tensor = self.relu(y)
        return result


def resnet() -> Built:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(8, 8, 1),
        Residual(8, 16, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    return model.train(), (torch.randn(2, 3, 32, 32),)


def encoder() -> Built:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(), (torch.randn(2, 5, 16),)


class Recurrent(nn.Module):
    """A bidirectional LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.lstm(x)[0]
        return result


def lstm() -> Built:
    return Recurrent(), (torch.randn(2, 4, 6),)


class UNet(nn.Module):
    """One step down and up again: pooling, transposed convolution, concatenation, interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle, self.last = self._block(3, 8), self._block(8, 16), self._block(16, 8)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def _block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inner, outer, 3, 1, 1), nn.GroupNorm(2, outer), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down(x)
        b = self.middle(F.max_pool2d(a, 2))
        y = self.last(torch.cat([a, self.up(b)], 1))
        y = y + F.interpolate(b[:, :8], scale_factor=2, mode="bilinear", align_corners=False)
        return F.log_softmax(self.head(y), 1)


def unet() -> Built:
    return UNet(), (torch.randn(2, 3, 16, 16),)


MODELS: dict[str, Callable[[], Built]] = {
    f.__name__: f for f in (gpt2, bert, llama, vit, t5, convnext, resnet, encoder, lstm, unet)
}


def build(name: str) -> Built:
    """A model by name, always with the same weights and inputs."""
    torch.manual_seed(0)
    return MODELS[name]()


@torch.no_grad()
def error_over_its_own(model: nn.Module, program: Callable[..., Any], args: tuple[Any, ...], draws: int = 8) -> float:
    """The error of a program against the model in float64 over that of the model itself: root mean squares, over inputs
    drawn like `args`. (The largest error of one draw is chance: it differs by a factor from one processor to another.)
    """
    exact, squares = copy.deepcopy(model).double(), torch.zeros(2, dtype=torch.float64)
    for _ in range(draws):
        wanted = _first(exact(*(x.double() if x.is_floating_point() else x for x in args)))
        squares += torch.stack([(_first(function(*args)) - wanted).pow(2).sum() for function in (program, model)])
        args = tuple(_drawn_like(x) for x in args)
    of_program, of_model = squares.sqrt().tolist()
    return of_program / of_model


def _first(result: Any) -> torch.Tensor:
    return next(x for x in tree_leaves(result) if isinstance(x, torch.Tensor)).double()


def _drawn_like(x: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(x) if x.is_floating_point() else x.flatten()[torch.randperm(x.numel())].view_as(x)
