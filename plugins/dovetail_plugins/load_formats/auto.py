"""Auto: detects the format of the files: safetensors, Mistral's own, torch.save files, GGUF.

Safetensors come first, unless the only ones are Mistral's consolidated files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.plugin import Info
from dovetail_plugins.load_formats._files import weight_files
from dovetail_plugins.load_formats.gguf import Gguf
from dovetail_plugins.load_formats.mistral import Mistral
from dovetail_plugins.load_formats.pt import ONTO_CPU, Pt, PtOptions
from dovetail_plugins.load_formats.safetensors import (
    INDEX,
    PATTERNS,
    READINGS,
    Safetensors,
    SafetensorsOptions,
)
from dovetail_plugins.load_formats.sharded_state import PATTERN as RANK_FILES
from dovetail_plugins.load_formats.sharded_state import files_by_rank

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoOptions:
    """The options of safetensors and of torch.save files; options of absent files are refused."""

    reading: str = field(
        default=READINGS[0],
        metadata={"choices": READINGS, "help": "how safetensors files are read, as there"},
    )
    map_location: Mapping[str, str] = field(
        default_factory=lambda: dict(ONTO_CPU),
        metadata={"help": "where torch.save files are read to, as in pt"},
    )
    mmproj: str | None = field(
        default=None, metadata={"help": "the projector's file of a GGUF model, as in gguf"}
    )


class Auto(LoadFormat):
    """The first of safetensors, mistral, pt and gguf that fits the path."""

    info = Info(
        summary="safetensors if there are any (mistral's too), else torch.save or GGUF files"
    )
    Options = AutoOptions

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why no format fits. `query` is a Checkpoint or None."""
        reasons = [Safetensors.why_not(query), Pt.why_not(query), Gguf.why_not(query)]
        return [text for each in reasons for text in each] if all(reasons) else []

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the format that fits. Raises: ConfigError when none does."""
        return self._fitting(checkpoint).tensors(checkpoint)

    def headers(self, checkpoint: Checkpoint) -> Iterable[TensorHeader] | None:
        """Return the headers of the format that fits. Raises: ConfigError when none does."""
        return self._fitting(checkpoint).headers(checkpoint)

    def _fitting(self, checkpoint: Checkpoint) -> LoadFormat:
        """Return the format that fits. Raises: ConfigError when none does."""
        if _is_consolidated(checkpoint):
            return Mistral(self._reading(checkpoint))
        if files_by_rank(checkpoint, RANK_FILES):
            raise ConfigError(
                "the folder holds the parameters of each rank, not a whole checkpoint.",
                where=checkpoint.path,
                fix="use --load-format sharded_state.",
            )
        if not Safetensors.why_not(checkpoint):
            return Safetensors(self._reading(checkpoint))
        if self.options.reading != READINGS[0]:
            raise ConfigError(
                f'the strategy "{self.options.reading}" needs safetensors files; there are none.',
                where=checkpoint.path,
                fix="leave --safetensors-load-strategy out.",
            )
        if not Pt.why_not(checkpoint):
            return Pt(PtOptions(map_location=self.options.map_location))
        if not Gguf.why_not(checkpoint):
            self._check_no_places(checkpoint)
            return Gguf(Gguf.Options(mmproj=self.options.mmproj))
        raise ConfigError(
            "; ".join(dict.fromkeys(self.why_not(checkpoint))),
            where=checkpoint.path,
            fix="give a folder with *.safetensors or pytorch_model*.bin files, a GGUF file, "
            "or --load-format dummy for random weights.",
        )

    def _reading(self, checkpoint: Checkpoint) -> SafetensorsOptions:
        """Return the options of safetensors files. Raises: ConfigError as _check_no_places does."""
        self._check_no_places(checkpoint)
        return SafetensorsOptions(reading=self.options.reading)

    def _check_no_places(self, checkpoint: Checkpoint) -> None:
        """Raises: ConfigError if the options name a device that only torch.save files can go to."""
        if dict(self.options.map_location) != ONTO_CPU:
            raise ConfigError(
                "only torch.save files (.bin, .pt) can be read onto a chosen device, "
                "and this checkpoint's other files are read first.",
                where=checkpoint.path,
                fix="leave --pt-load-map-location out, or use --load-format pt.",
            )


def _is_consolidated(checkpoint: Checkpoint) -> bool:
    """Return whether all safetensors files of the folder are Mistral's own."""
    if Mistral.why_not(checkpoint):
        return False
    found = weight_files(checkpoint, index=INDEX, patterns=PATTERNS)
    return all(path.name.startswith("consolidated") for path in found)
