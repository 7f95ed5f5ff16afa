"""Processors of pages as pictures: transformers' own, which write the words around a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.multimodal.processors import processor_class


class PageProcessor:
    """Converts an image to features and to the text of a whole prompt (`page`)."""

    page_begins = True
    """Whether the tokenizer adds its special tokens around that text."""
    module = ""
    name = ""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.tokenizer: Any = inner.tokenizer
        self.image_processor: Any = inner.image_processor
        self.image_token: str = inner.image_token

    @staticmethod
    def is_wanted() -> bool:
        """Return True: a page has more words than a picture."""
        return True

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> PageProcessor:
        """Return the processor of a checkpoint. Raises: whatever transformers raises"""
        return cls(processor_class(cls.module, cls.name).from_pretrained(folder))

    def __call__(self, images: list[Any], return_tensors: str = "pt", **options: Any) -> Any:
        """Return the features of one image, and its page. `options` are the processor's."""
        found = self.given(images, {**options, "return_tensors": return_tensors})
        (replacements,) = found.pop("text_replacement_offsets")
        page = self.template()
        for one in replacements:
            page = page.replace(self.image_token, "\0", 1).replace("\0", one["replacement"])
        names = ("pixel_values", "pixel_attention_mask", "image_grid_thw")
        return {**{name: found[name] for name in names if name in found}, "page": page}

    def given(self, images: list[Any], options: dict[str, Any]) -> Any:
        """Return what transformers' processor makes of images."""
        return self._inner(images=images, return_text_replacement_offsets=True, **options)

    def template(self) -> str:
        """Return the words of a page around the token of its picture."""
        return str(self._inner.visual_prompt_prefix)


class ColQwen2Processor(PageProcessor):
    """The processor of ColQwen2."""

    module, name = "colqwen2", "ColQwen2Processor"

    def given(self, images: list[Any], options: dict[str, Any]) -> Any:
        """Return the features, with the patches in rows."""
        found = super().given(images, options)
        found["pixel_values"] = found["pixel_values"].flatten(0, 1)
        return found


class ColPaliProcessor(PageProcessor):
    """The processor of ColPali."""

    module, name = "colpali", "ColPaliProcessor"
    page_begins = False

    def template(self) -> str:
        """Return the words of a page."""
        begin = self.tokenizer.bos_token
        return f"{self.image_token}{begin}{self._inner.visual_prompt_prefix}\n"


class ColModernVBertProcessor(PageProcessor):
    """The processor of ColModernVBERT."""

    module, name = "colmodernvbert", "ColModernVBertProcessor"

    def given(self, images: list[Any], options: dict[str, Any]) -> Any:
        """Return the features; this processor takes the words with the image."""
        return super().given(images, {**options, "text": [self.template()]})
