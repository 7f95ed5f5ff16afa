"""VitsTokenizer: characters or phonemes of a text that is spoken, by transformers' class.

Some checkpoints read phonemes, and some a text in Latin letters; packages make either. Without them
transformers would fail at the first text, or leave letters out, so they are asked for at the start.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import Info
from dovetail_plugins.tokenizers import _files
from dovetail_plugins.tokenizers.hf import TransformersTokenizer

CLASS = "VitsTokenizer"
NEEDS = {
    "phonemize": ("phonemizer", "reads phonemes", " and espeak-ng with the system's packages"),
    "is_uroman": ("uroman", "reads its language in Latin letters", ""),
}
"""A setting -> the package that it needs, what the checkpoint does, and what else is needed."""


class VitsTokenizer(TransformersTokenizer):
    """The tokenizer of VITS and MMS-TTS."""

    info = Info(
        summary="VITS's characters or phonemes, through transformers",
        source="https://arxiv.org/abs/2106.06103",
        requires=("transformers",),
    )
    auto_rank = 1

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the folder is not of this kind. `query` is its path or None."""
        if query is None:
            return []
        folder = Path(query)
        if folder.is_dir() and _files.read_settings(folder).get("tokenizer_class") == CLASS:
            return []
        return [f"the folder's tokenizer_config.json does not name {CLASS}"]

    def _load(self, folder: Path) -> Any:
        settings = _files.read_settings(folder)
        for name, (package, does, more) in NEEDS.items():
            wants = settings.get(name, name == "phonemize")
            if wants and find_spec(package) is None:
                raise ConfigError(
                    f"the checkpoint {does}, and the package {package} is not installed.",
                    where=str(folder / "tokenizer_config.json"),
                    fix=f"install it with `pip install {package}`{more}.",
                )
        return super()._load(folder)
