"""Auto: safetensors where the folder has them, else torch.save files. Knows no other format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats.pt import Pt
from dovetail_plugins.load_formats.safetensors import Safetensors, SafetensorsOptions

if TYPE_CHECKING:
    import torch


class Auto(LoadFormat):
    """The first of safetensors and pt that fits the folder."""

    info = Info(summary="safetensors if there are any, else torch.save files")
    Options = SafetensorsOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why neither format fits. `query` is a Checkpoint or None."""
        reasons = [Safetensors.why_not(query), Pt.why_not(query)]
        return [text for each in reasons for text in each] if all(reasons) else []

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the format that fits. Raises: ConfigError when none does."""
        if not Safetensors.why_not(checkpoint):
            return Safetensors(self.options).tensors(checkpoint)
        if self.options.reading != "lazy":
            raise ConfigError(
                f"only safetensors files are read {self.options.reading}, and there are none",
                where=checkpoint.path,
                fix="leave --safetensors-load-strategy out",
            )
        if not Pt.why_not(checkpoint):
            return Pt(self.options).tensors(checkpoint)
        raise ConfigError(
            "; ".join(dict.fromkeys(self.why_not(checkpoint))),
            where=checkpoint.path,
            fix="give a folder with *.safetensors or pytorch_model*.bin files, "
            "or --load-format dummy for random weights",
        )
