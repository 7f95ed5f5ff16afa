"""A replacement for transformers' PixtralProcessor, which cannot be imported without torchvision.

An image is rows of patches: a token for each, one that breaks each row, one that ends the last.
Source: https://arxiv.org/abs/2410.07073; processor_config.json of Pixtral and Mistral Small 3.1.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError

DEFAULTS: dict[str, Any] = {
    "patch_size": 16,
    "spatial_merge_size": 1,
    "image_token": "[IMG]",
    "image_break_token": "[IMG_BREAK]",
    "image_end_token": "[IMG_END]",
}


class PixtralProcessor:
    """Converts images to features and placeholder text."""

    def __init__(self, image_processor: Any, tokenizer: Any, **settings: Any) -> None:
        self.image_processor = image_processor
        self.tokenizer = tokenizer
        self.settings = {**DEFAULTS, **settings}
        self.image_token: str = self.settings["image_token"]

    @staticmethod
    def is_wanted() -> bool:
        """Return whether transformers' own cannot be imported here."""
        return find_spec("torchvision") is None

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> PixtralProcessor:
        """Return the processor of a checkpoint. Raises: ConfigError"""
        import transformers

        path = Path(folder) / "processor_config.json"
        if not path.is_file():
            raise ConfigError("the file is missing.", where=str(path))
        stored = read_json(path)
        return cls(
            transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False),
            transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
            **{name: stored[name] for name in DEFAULTS if name in stored},
        )

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the processor's files."""
        self.image_processor.save_pretrained(folder)
        stored = {**self.settings, "processor_class": type(self).__name__}
        path = Path(folder) / "processor_config.json"
        path.write_text(json.dumps(stored), encoding="utf-8")

    def __call__(
        self,
        text: list[str],
        images: list[Any] | None = None,
        return_tensors: str = "pt",
        return_text_replacement_offsets: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        """Return the features of images, the ids of a text, and each image's placeholder text.

        `options` are the image processor's.
        """
        patch = self.settings["patch_size"] * self.settings["spatial_merge_size"]
        found: dict[str, Any] = {}
        if images:
            size = {"height": patch, "width": patch}
            features = self.image_processor(
                images, patch_size=size, return_tensors=return_tensors, **options
            )
            found.update(features)
        texts = [
            self._of(int(height), int(width), patch)
            for height, width in found.get("image_sizes", [])
        ]
        (whole,) = text
        for one in texts:
            whole = whole.replace(self.image_token, "\0" + one.replace(self.image_token, "\1"), 1)
        whole = whole.replace("\0", "").replace("\1", self.image_token)
        found.update(self.tokenizer([whole], return_tensors=return_tensors))
        if return_text_replacement_offsets:
            found["text_replacement_offsets"] = [[{"replacement": one} for one in texts]]
        return found

    def _of(self, height: int, width: int, patch: int) -> str:
        """Return the placeholder text of an image of this size in pixels."""
        row = self.image_token * (int(width) // patch)
        rows = [row] * (int(height) // patch)
        return self.settings["image_break_token"].join(rows) + self.settings["image_end_token"]
