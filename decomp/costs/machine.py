"""Describes the machine that measurements run on."""

from __future__ import annotations

import os
from pathlib import Path
import platform
from typing import Any

import torch


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Processor, device, versions and threads."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _processor() -> str:
    """The processor's name."""
    # `platform.processor()` is empty on most distributions of Linux.
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
