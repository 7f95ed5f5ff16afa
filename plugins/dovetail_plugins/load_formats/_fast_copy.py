"""One safetensors file through the fastsafetensors package.

Source: https://github.com/foundation-model-stack/fastsafetensors
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dovetail.errors import ConfigError
from dovetail_plugins.load_formats._safetensors_file import Header


def copied_tensors(header: Header) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the file's tensors. Raises: ConfigError when the package cannot read it."""
    from fastsafetensors import fastsafe_open

    if not any(extent.end > extent.start for extent in header.extents):
        yield from ((e.name, torch.empty(e.shape, dtype=e.dtype)) for e in header.extents)
        return
    try:
        with fastsafe_open(str(header.path), device="cpu", nogds=True) as file:
            for extent in header.extents:
                # The package may return a tensor in another shape's strides, or share its buffer.
                yield extent.name, file.get_tensor(extent.name)
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise ConfigError(
            f"cannot be copied: {error}",
            where=str(header.path),
            fix="use --load-format safetensors.",
        ) from error
