"""Hf: the files of a Hugging Face checkpoint: safetensors, or else torch.save files.

As auto, but it never takes Mistral's consolidated files or a GGUF file. Source: `vllm serve`.
"""

from __future__ import annotations

from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats.auto import Auto
from dovetail_plugins.load_formats.gguf import Gguf
from dovetail_plugins.load_formats.mistral import Mistral
from dovetail_plugins.load_formats.pt import Pt, PtOptions
from dovetail_plugins.load_formats.safetensors import Safetensors


class Hf(Auto):
    """The first of safetensors and pt that fits the path."""

    info = Info(summary="safetensors if there are any, else torch.save files; no others")

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why neither format fits. `query` is a Checkpoint or None."""
        reasons = [Safetensors.why_not(query), Pt.why_not(query)]
        return [text for each in reasons for text in each] if all(reasons) else []

    def _fitting(self, checkpoint: Checkpoint) -> LoadFormat:
        """Return the format that fits. Raises: ConfigError when none does."""
        load_format = super()._fitting(checkpoint)
        if isinstance(load_format, Mistral) and not Pt.why_not(checkpoint):
            return Pt(PtOptions(map_location=self.options.map_location))
        if isinstance(load_format, Mistral | Gguf):
            raise ConfigError(
                "the weights are not files of a Hugging Face checkpoint.",
                where=checkpoint.path,
                fix="use --load-format auto.",
            )
        return load_format
