"""Writes the files beside it with tensorizer 2.12.1. Needs that package, which the tests do not.

Two data versions: 2 where types are opaque to numpy, 1 where all are plain. The package leaves
256 KiB for its index, so the files are kept compressed.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import torch

HERE = Path(__file__).parent


def tensors() -> dict[str, torch.Tensor]:
    """Return what the files hold. torch.rand's bits are the same on every CPU; randn's are not."""
    random = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.rand(7, 5, generator=random) - 0.5,
        "b.weight": (torch.rand(5, generator=random) - 0.5).to(torch.bfloat16),
        "c.weight": (torch.rand(5, 3, generator=random) - 0.5).to(torch.float16),
        "d.codes": torch.arange(12, dtype=torch.int32).reshape(2, 2, 3),
        "e.scale": torch.tensor(0.5),
        "f.none": torch.zeros(0, 4),
        "g.mask": torch.tensor([True, False]),
        "h.short": torch.tensor([[1.0, -2.0, 0.5]]).to(torch.float8_e4m3fn),
        "i.bytes": torch.arange(5, dtype=torch.uint8),
    }


def main() -> None:
    """Write both files. Mutates: the folder"""
    from tensorizer import TensorSerializer

    plain = {k: v for k, v in tensors().items() if v.dtype not in OPAQUE}
    for name, held in (("opaque.tensors", tensors()), ("plain.tensors", plain)):
        path = HERE / name
        writer = TensorSerializer(str(path))
        writer.write_state_dict(held)
        writer.close()
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


OPAQUE = (torch.bfloat16, torch.float8_e4m3fn)

if __name__ == "__main__":
    main()
