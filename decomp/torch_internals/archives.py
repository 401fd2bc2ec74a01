"""The reader of `.pt2` archives: the public function executes code that it reads."""

# `torch.export.load` passes expressions of sizes to `sympy.sympify`, which evaluates text (`GraphModuleDeserializer` in
# torch/_export/serde/serialize.py, torch 2.13).

from torch._export.serde.schema import SCHEMA_VERSION as SCHEMA_VERSION
from torch._export.serde.serialize import _SYM_OPS as SYM_OPS
from torch.export.pt2_archive._package import PT2ArchiveReader as PT2ArchiveReader

__all__ = ["SCHEMA_VERSION", "SYM_OPS", "PT2ArchiveReader"]
