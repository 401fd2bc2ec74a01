"""Small whole models by name, with random weights and example inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Example = tuple[nn.Module, tuple[Tensor, ...]]
"""A module and the positional arguments to call it with."""


def model(name: str, seed: int = 0) -> Example:
    """The sample model called `name`, in training mode, and its inputs, the same for the same seed; the global random
    state is left alone. Raises `LookupError`, naming those that there are."""
    if name not in MODELS:
        raise LookupError(f"no sample model {name!r}; there are {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]()


class CausalSelfAttention(nn.Module):
    """Causal self-attention over `(batch, time, width)`, its heads side by side in one projection."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.project(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """A pre-norm transformer layer: attention, then a two-layer perceptron, each around a residual."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads, causal)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """GPT-2 in small: learned positions, pre-norm layers, and a head that shares the embedding's weights.
    `tokens`: int64, (batch, time); returns logits, float, (batch, time, vocabulary)."""

    def __init__(
        self, vocabulary: int = 96, context: int = 32, width: int = 32, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ViT(nn.Module):
    """A vision transformer: patches by a strided convolution, a class token, learned positions."""

    def __init__(self, size: int = 16, patch: int = 4, width: int = 32, heads: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads, causal=False) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Residual(nn.Module):
    """Two 3 × 3 convolutions with batch norm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with batch norm, whose running statistics training mode updates."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        norm, relu = nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), norm, relu)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.layers = nn.Sequential(Residual(width, width), Residual(width, 2 * width, stride=2))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layers(self.pool(self.stem(image)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class LSTM(nn.Module):
    """A two-layer recurrent network over `(batch, time, features)`, read out at the last step."""

    def __init__(self, features: int = 6, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(features, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        states, _ = self.recurrent(sequence)
        return self.head(states[:, -1])


class UNet(nn.Module):
    """Down by pooling, up by interpolation and by a transposed convolution, with skip connections."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.down = _convolved(1, width)
        self.middle = _convolved(width, 2 * width)
        self.bottom = _convolved(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(3 * width, width, 2, stride=2)
        self.merge = _convolved(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down(image)
        coarse = self.middle(F.max_pool2d(fine, 2))
        x = F.interpolate(self.bottom(F.avg_pool2d(coarse, 2)), scale_factor=2.0, mode="bilinear", align_corners=False)
        x = self.up(torch.cat([x, coarse[:, : self.down[0].out_channels]], dim=1))
        return self.head(self.merge(torch.cat([x, fine], dim=1)))


def _convolved(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU())


def _gpt() -> Example:
    return GPT(), (torch.randint(96, (2, 16)),)


def _mlp() -> Example:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(3, 8),)


def _encoder() -> Example:
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 5, 16),)


MODELS: Mapping[str, Callable[[], Example]] = {
    "gpt": _gpt,
    "mlp": _mlp,
    "resnet": lambda: (ResNet(), (torch.randn(2, 3, 16, 16),)),
    "lstm": lambda: (LSTM(), (torch.randn(2, 4, 6),)),
    "unet": lambda: (UNet(), (torch.randn(1, 1, 8, 8),)),
    "encoder": _encoder,
    "vit": lambda: (ViT(), (torch.randn(2, 3, 16, 16),)),
}
"""Every sample model by name."""
