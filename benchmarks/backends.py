"""Models on XLA beside PyTorch: `python -m benchmarks.backends`. A model as it is (eager), under `torch.compile`
(Inductor), and lowered to `stablehlo`, compiled by XLA, each on one thread and in turns; the figure is the least
processor time of a run, which other work on the machine moves little."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import copy
import os
import time
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import decomp  # noqa: E402
from decomp_rules import backends  # noqa: E402

Built = tuple[nn.Module, tuple[Tensor, ...]]


class Logits(nn.Module):
    """A language model whose result is its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens).logits
        return logits


def gpt2() -> Built:
    """GPT-2 small, 124 million parameters; 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False))
    return Logits(model), (torch.randint(0, 50257, (1, 64)),)


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


def resnet18() -> Built:
    """ResNet-18; one image of 224 by 224."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              (512, 512, 1)]  # fmt: skip
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *(Residual(*each) for each in widths), *head), (torch.randn(1, 3, 224, 224),)


MODELS: dict[str, Callable[[], Built]] = {"gpt2": gpt2, "resnet18": resnet18}


def measured(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least processor time of each in milliseconds, run in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], (time.process_time() - start) * 1e3)
    return best


def compare(name: str, rounds: int) -> str:
    """A row of the table for one model. Runs without gradients."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    model.eval()
    backend = backends.get("stablehlo")
    loaded = backend.load(decomp.lower(model, to=backend.target, args=args))
    found, own = loaded(*args), model(*args)
    exact = copy.deepcopy(model).double()(*(x.double() if x.is_floating_point() else x for x in args))
    error = float((found - exact).abs().max() / (own - exact).abs().max())
    compiled = torch.compile(model)
    compiled(*args)
    contenders = {"eager": lambda: model(*args), "inductor": lambda: compiled(*args), "xla": lambda: loaded(*args)}
    times = measured(contenders, rounds)
    ratios = f"{times['xla'] / times['eager']:.2f} | {times['xla'] / times['inductor']:.2f}"
    cells = (f"{times[each]:.0f} ms" for each in contenders)
    return f"| {name} | {' | '.join(cells)} | {ratios} | {error:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("| model | eager | Inductor | XLA | XLA / eager | XLA / Inductor | error / own float32 error |")
    print("|---|---|---|---|---|---|---|")
    for name in chosen.models:
        print(compare(name, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
