"""Models as people export them: the architectures of the package transformers, a few layers of each with random
weights, and small models of other kinds (recurrent, graph, spectral, image to image)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from decomp_rules import samples
from decomp_rules.samples.architectures import TEXT, VOCABULARY, Output

TEXTS: Mapping[str, Any] = dict(
    hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, max_position_embeddings=128
)
IMAGES: Mapping[str, Any] = dict(
    hidden_size=96, num_hidden_layers=3, num_attention_heads=3, intermediate_size=256, image_size=64, patch_size=8
)


@dataclass
class Exported:
    """A model, its inputs, and which of their sizes are open, as `torch.export` takes it."""

    model: nn.Module
    args: tuple[Tensor, ...]
    dynamic: Any = None


def _text(kind: str, like: Mapping[str, Any] = TEXTS, output: str = "last_hidden_state", **more: Any) -> Exported:
    """A model of the package transformers over tokens, (2, 48)."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**TEXT, **like, **more})
    model = getattr(transformers, f"{kind}{'Model' if output == 'last_hidden_state' else output}")(config)
    name = "last_hidden_state" if output in ("last_hidden_state", "EncoderModel") else "logits"
    return Exported(Output(model, "input_ids", name), (torch.randint(3, VOCABULARY, (2, 48)),))


def _image(kind: str, like: Mapping[str, Any] = IMAGES, output: str = "last_hidden_state", **more: Any) -> Exported:
    """A model of the package transformers over images, (1, 3, 64, 64)."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**like, **more})
    model = getattr(transformers, f"{kind}Model")(config)
    return Exported(Output(model, "pixel_values", output), (torch.randn(1, 3, 64, 64),))


def _audio(kind: str, **more: Any) -> Exported:
    """A model of the package transformers over one second of sound, (1, 8000)."""
    import transformers

    sizes = dict(conv_dim=(32, 32, 32), conv_kernel=(10, 3, 3), conv_stride=(5, 4, 4), num_feat_extract_layers=3)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        apply_spec_augment=False,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        **sizes,
        **more,
    )
    model = getattr(transformers, f"{kind}Model")(config)
    return Exported(Output(model, "input_values", "last_hidden_state"), (torch.randn(1, 8000),))


def _open(made: Exported, **sizes: int) -> Exported:
    """The model with these dimensions of its first input open."""
    made.dynamic = ({dimension: Dim(name, min=2, max=128) for name, dimension in sizes.items()},)
    return made


def _sample(name: str) -> Exported:
    model, args = samples.model(name)
    return Exported(model, args)


class Wrapped(nn.Module):
    """One output of a layer that has several."""

    def __init__(self, layer: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, head

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layer(x)[0])
        return found


class MobileBlock(nn.Module):
    """An inverted residual of MobileNetV3 with squeeze and excitation (Howard et al., 2019)."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, wide // 4, 1),
            nn.ReLU(),
            nn.Conv2d(wide // 4, wide, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = self.depth(self.expand(x))
        found: Tensor = x + self.project(wide * self.squeeze(wide))
        return found


def mobilenet_v3() -> Exported:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 64), nn.Hardswish(), nn.Dropout(0.2))
    blocks = (MobileBlock(16, wide) for wide in (64, 72, 96))
    return Exported(nn.Sequential(stem, *blocks, head, nn.Linear(64, 10)), (torch.randn(1, 3, 64, 64),))


def style_transfer() -> Exported:
    """Convolutions and instance norms (Ulyanov et al., 2016)."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 24), (24, 24), (24, 16)):
        layers += [nn.ReflectionPad2d(1), nn.Conv2d(inside, outside, 3), nn.InstanceNorm2d(outside, affine=True)]
        layers.append(nn.ReLU())
    return Exported(nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1)), (torch.randn(1, 3, 64, 64),))


def super_resolution() -> Exported:
    """Convolutions with PReLU, and sub-pixels (Ledig et al., 2017)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 5, padding=2), nn.PReLU()]
    for _ in range(3):
        layers += [nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.PReLU(24)]
    layers += [nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2)]
    return Exported(nn.Sequential(*layers), (torch.randn(1, 3, 48, 48),))


class GraphNet(nn.Module):
    """Two layers that send messages along edges and reduce them where they arrive (Gilmer et al., 2017)."""

    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            sent = layer(x).index_select(0, edges[0])
            place = edges[1][:, None].expand_as(sent)
            x = F.relu(x + torch.zeros_like(x).scatter_reduce(0, place, sent, self.reduce, include_self=False))
        return x


def graph_net(reduce: str) -> Exported:
    """200 nodes, 1,600 edges."""
    return Exported(GraphNet(reduce), (torch.randn(200, 32), torch.randint(0, 200, (2, 1600))))


class GraphConvolution(nn.Module):
    """Sums over neighbours, divided by their number (Kipf and Welling, 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        degree = torch.zeros(x.shape[0]).index_add(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        for layer in self.layers:
            x = torch.tanh(torch.zeros_like(x).index_add(0, edges[1], layer(x)[edges[0]]) / degree[:, None])
        return x


def graph_convolution() -> Exported:
    return Exported(GraphConvolution(), (torch.randn(200, 32), torch.randint(0, 200, (2, 1600))))


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: weights on the lowest frequencies (Li et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 12, 2) / 16)
        self.skip = nn.Conv1d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = torch.view_as_real(torch.fft.rfft(x))[:, :, :12]
        real, imag, (a, b) = low[..., 0], low[..., 1], self.weight.unbind(-1)
        mixed = torch.stack(
            [
                torch.einsum("bik,iok->bok", real, a) - torch.einsum("bik,iok->bok", imag, b),
                torch.einsum("bik,iok->bok", real, b) + torch.einsum("bik,iok->bok", imag, a),
            ],
            -1,
        )
        return F.gelu(torch.fft.irfft(torch.view_as_complex(mixed), n=x.shape[-1]) + self.skip(x))


def recurrent(layer: nn.Module, width: int) -> Exported:
    return Exported(Wrapped(layer, nn.Linear(width, 10)), (torch.randn(4, 40, 32),))


def mlp() -> Exported:
    return Exported(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.SiLU(), nn.LayerNorm(128)),
        (torch.randn(4, 16, 64),),
    )


_CAUSAL: Mapping[str, Any] = {**TEXTS, "use_cache": False}
_CONV: Mapping[str, Any] = dict(num_channels=3)
_of = functools.partial

MODELS: Mapping[str, Callable[[], Exported]] = {
    "BERT": _of(_text, "Bert"),
    "BERT, open": lambda: _open(_text("Bert"), batch=0, time=1),
    "RoBERTa": _of(_text, "Roberta", max_position_embeddings=130),
    "ELECTRA": _of(_text, "Electra", embedding_size=64),
    "ALBERT": _of(_text, "Albert", embedding_size=64),
    "DistilBERT": _of(_text, "DistilBert", dict(dim=128, n_layers=3, n_heads=4, hidden_dim=256)),
    "DeBERTa v2": _of(_text, "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "FNet": _of(_text, "FNet"),
    "GPT-2": _of(_text, "GPT2", dict(n_embd=128, n_layer=3, n_head=4, use_cache=False), "LMHeadModel"),
    "GPT-2, open": lambda: _open(
        _text("GPT2", dict(n_embd=128, n_layer=3, n_head=4, use_cache=False), "LMHeadModel"), batch=0, time=1
    ),
    "GPT-NeoX": _of(_text, "GPTNeoX", _CAUSAL),
    "OPT": _of(_text, "OPT", {**_CAUSAL, "ffn_dim": 256}),
    "Llama": _of(_text, "Llama", {**_CAUSAL, "num_key_value_heads": 2}, "ForCausalLM"),
    "Llama, open": lambda: _open(_text("Llama", {**_CAUSAL, "num_key_value_heads": 2}, "ForCausalLM"), batch=0, time=1),
    "Qwen2": _of(_text, "Qwen2", {**_CAUSAL, "num_key_value_heads": 2}),
    "Gemma": _of(_text, "Gemma", {**_CAUSAL, "num_key_value_heads": 1, "head_dim": 32}),
    "Phi": _of(_text, "Phi", _CAUSAL),
    "BLOOM": _of(_text, "Bloom", dict(hidden_size=128, n_layer=3, n_head=4, use_cache=False)),
    "T5 encoder": _of(_text, "T5", dict(d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4), "EncoderModel"),
    "ViT": _of(_image, "ViT"),
    "DeiT": _of(_image, "DeiT"),
    "CLIP vision": _of(_image, "CLIPVision"),
    "Swin": _of(
        _image,
        "Swin",
        dict(image_size=64, patch_size=4, embed_dim=32, depths=[1, 1], num_heads=[2, 4], window_size=4),
    ),
    "ConvNeXt": _of(_image, "ConvNext", dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])),
    "ResNet": _of(_image, "ResNet", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic")),
    "RegNet": _of(_image, "RegNet", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8)),
    "MobileNetV2": _of(_image, "MobileNetV2", dict(depth_multiplier=0.35, image_size=64)),
    "MobileNetV3": mobilenet_v3,
    "EfficientNet": _of(
        _image, "EfficientNet", dict(width_coefficient=0.3, depth_coefficient=0.3, image_size=64, hidden_dim=384)
    ),
    "MobileViT": _of(
        _image,
        "MobileViT",
        dict(image_size=64, hidden_sizes=[32, 40, 48], neck_hidden_sizes=[8, 16, 24, 32, 40, 48, 64]),
    ),
    "SegFormer": _of(
        _image,
        "Segformer",
        dict(
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_encoder_blocks=2,
            sr_ratios=[4, 2],
            patch_sizes=[7, 3],
            strides=[4, 2],
            num_attention_heads=[1, 2],
            mlp_ratios=[2, 2],
        ),
    ),
    "PoolFormer": _of(_image, "PoolFormer", dict(hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1])),
    "Wav2Vec2": _of(_audio, "Wav2Vec2"),
    "U-Net": _of(_sample, "unet"),
    "style transfer": style_transfer,
    "super-resolution": super_resolution,
    "MLP": mlp,
    "LSTM": lambda: recurrent(nn.LSTM(32, 48, 2, batch_first=True), 48),
    "LSTM, two directions": lambda: recurrent(nn.LSTM(32, 32, bidirectional=True, batch_first=True), 64),
    "GRU": lambda: recurrent(nn.GRU(32, 48, batch_first=True), 48),
    "graph net, max": _of(graph_net, "amax"),
    "graph net, mean": _of(graph_net, "mean"),
    "graph convolution": graph_convolution,
    "Fourier neural operator": lambda: Exported(Spectral(), (torch.randn(2, 16, 128),)),
}
