"""MediaReader: turns an image, a video or a sound into its model's features.

The checkpoint's processor (of transformers) makes the features and the text that represents them in
a prompt; results are cached by key.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.config.checkpoint.media_tokens import token_of
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.media import KEPT, READY, Feature, MediaSpec, ReadMedium, feature_of
from dovetail.interfaces.data.media_settings import AUDIO, VIDEO
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.multimodal.content import EMBEDS, Embeddings, Sound
from dovetail.multimodal.extra import INSTALL, package
from dovetail.multimodal.kept import KeptMedia, OwnMedia, SharedMedia
from dovetail.multimodal.processors import (
    ARGUMENTS,
    TEXT_FIELDS,
    load_processor,
    processor_folder,
    rate_of,
)

logger = logging.getLogger(__name__)

IMAGE = "image"
KINDS = (IMAGE, "video", "audio")
PREFIXES = "PaliGemmaProcessor"
"""The processor with its own prompt layout."""


class MediaReader:
    """The processor of one checkpoint. Thread-safe."""

    def __init__(self, model: ModelSpec, spec: MediaSpec) -> None:
        self._spec = spec
        self._kept = kept_media(spec)
        self._folder = processor_folder(model)
        self._processor = _processor(model, self._folder)
        vision = model.whole_config.get("vision_config") or {}
        facts = facts_of(model.whole_config)
        self._time_scale = float(vision.get("tokens_per_second") or facts.positions_per_second)
        deep = vision.get("deepstack_visual_indexes") or ()
        self._vector_size = model.hidden_size * (1 + len(deep))
        self._blanks: dict[str, ReadMedium] = {}
        self.takes_one_kind, self.takes_one_alone = facts.media_apart, facts.media_alone
        self._rate_hz = rate_of(self._processor)
        self._merged = int(vision.get("spatial_merge_size") or 1)
        # A medium that is a whole prompt is in no text, so any token can stand for it.
        found = {kind: token_of(model.whole_config, kind) for kind in spec.kinds}
        without = 0 if facts.media_alone else None
        tokens = {kind: without if token is None else token for kind, token in found.items()}
        self.token_ids = {kind: token for kind, token in tokens.items() if token is not None}

    @property
    def place_ids(self) -> dict[str, int]:
        """Return the placeholder token of unread media, by kind."""
        known = self._processor.tokenizer.convert_tokens_to_ids
        return {kind: known(self.placeholder(kind)) for kind in self.token_ids}

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of media that the model takes."""
        return frozenset(self.token_ids)

    def placeholder(self, kind: str) -> str:
        """Return the placeholder text of unread media."""
        usual = (f"<{kind}>",) if self.takes_one_alone else ()
        text: str = getattr(self._processor, f"{kind}_token", *usual)
        return text

    def numbered(self, text: str, index: int) -> str:
        """Return a medium's text with its index in the prompt, if the model's processor writes such
        numbers."""
        begin, end = (
            getattr(self._processor, f"image_id_{part}_token", "") for part in ("start", "end")
        )
        first = f"{begin}0{end}"
        is_numbered = bool(begin) and text.startswith(first)
        return f"{begin}{index}{end}{text.removeprefix(first)}" if is_numbered else text

    def laid_out(self, text: str) -> tuple[str, bool]:
        """Return a text with placeholders in the layout of the model's processor, and whether the
        tokenizer adds the begin token. PaliGemma's text has it after the last image, and ends in a
        newline."""
        if type(self._processor).__name__ != PREFIXES:
            return text, getattr(self._processor, "page_begins", True)
        word, begin = self.placeholder(IMAGE), str(self._processor.tokenizer.bos_token)
        end = text.rfind(word) + len(word)
        is_done = text[end:].startswith(begin)
        return text if is_done else f"{text[:end]}{begin}{text[end:]}\n", False

    def key_of(self, kind: str, key: str, name: str | None) -> str:
        """Return the key of a medium and register its name for it. Without a key, return the key
        last registered for its name. Mutates: self"""
        if name is None:
            return key
        full = f"{kind} {name}"
        if not key:
            return self._kept.named(full) or f"unknown {name}"
        self._kept.name(full, key)
        return key

    def mark_of(self, kind: str) -> str:
        """Return the suffix of a kind's keys: the server settings that its vectors depend on."""
        rate = self._spec.pruning_rate
        return f"|pruned {rate:g}" if kind == VIDEO and rate else ""

    def read(
        self, kind: str, key: str, content: Callable[[], Any], options: Mapping[str, Any]
    ) -> ReadMedium:
        """Return a medium as read; `content` is decoded only if it is not cached.
        Raises: RequestError"""
        cached = self._kept.get(key)
        if cached is not None:
            return cached
        read = self._read(kind, content(), {**self._spec.options, **options})
        self._kept.put(key, read)
        return read

    def _read(self, kind: str, content: Any, options: Mapping[str, Any]) -> ReadMedium:
        if isinstance(content, Embeddings):
            return self._encoded(kind, content)
        if kind == VIDEO:
            return self._video(content)
        if kind == AUDIO:
            content, options = self._sound(content), {"sampling_rate": self._rate_hz, **options}
        text = {} if self.takes_one_alone else {"text": [self.placeholder(kind)]}
        given = {**text, ARGUMENTS[kind]: [content], **options}
        more = {"return_text_replacement_offsets": True} if text else {}
        try:
            output = self._processor(**given, return_tensors="pt", **more)
            replacements = output.get("text_replacement_offsets")
            word = output.get("page", "")  # of a whole prompt; without one it is a vector
            if text:
                word = replacements[0][0]["replacement"] if replacements else self._written(given)
        except Exception as error:  # transformers raises any exception for unreadable media
            raise RequestError(
                f"the model's processor cannot read this {kind}: {error}",
                where=kind,
                fix="send another, or other mm_processor_kwargs.",
            ) from error
        ids = self._processor.tokenizer(word, add_special_tokens=False)["input_ids"]
        return ReadMedium(
            text=word,
            num_rows=ids.count(self.token_ids[kind]) if word else 1,
            features=_features(output),
            shape=self._shape(output.get(f"{kind}_grid_thw")),
        )

    def _written(self, given: Mapping[str, Any]) -> str:
        """Return the text that a processor writes for a medium, if it returns only token ids.
        Raises: ValueError for tokens without an equivalent text"""
        known = self._processor.tokenizer
        ids = self._processor(**given, add_special_tokens=False)["input_ids"][0]
        text: str = known.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if known(text, add_special_tokens=False)["input_ids"] != list(ids):
            raise ValueError("what it writes has no spelling")
        return text

    def _video(self, content: Any) -> ReadMedium:
        """Return a video as read. Raises: RequestError"""
        from dovetail.multimodal.frames import PROCESSORS

        by_pictures = type(self._processor).__name__ in PROCESSORS
        try:
            return self._pictures(content) if by_pictures else self._patches(content)
        except (ValueError, AttributeError) as error:
            raise RequestError(
                f"the model cannot read this video: {error}", where=VIDEO, fix="send another."
            ) from error

    def _pictures(self, content: Any) -> ReadMedium:
        """Return a video whose frames are read as pictures. Raises: ValueError"""
        from dovetail.multimodal.frames import read_pictures
        from dovetail.multimodal.patches import as_video

        frames = as_video(content).frames
        pictures, text = read_pictures(self._processor, self._folder, frames)
        ids = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ReadMedium(
            text=text,
            num_rows=ids.count(self.token_ids[VIDEO]),
            features=(feature_of("pixel_values_videos", pictures),),
        )

    def _patches(self, content: Any) -> ReadMedium:
        """Return a video whose frames are cut into patches. Raises: ValueError"""
        import torch

        from dovetail.multimodal.patches import FrameSettings, read_frames
        from dovetail.multimodal.pruning import kept_cells, pruned_text

        settings = FrameSettings.of(self._processor, self._folder)
        self._processor.video_processor = settings.part
        frames = read_frames(self._processor, settings, content)
        shape = self._shape(frames.grid[None])
        cells = kept_cells(frames.patches, shape, self._spec.pruning_rate)
        text, features = frames.text, {"pixel_values_videos": frames.patches}
        features["video_grid_thw"] = frames.grid[None]
        if cells:
            text = pruned_text(text, self._word(VIDEO), cells, shape[1] * shape[2])
            features[KEPT] = torch.tensor(cells)
        ids = self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ReadMedium(
            text=text,
            num_rows=ids.count(self.token_ids[VIDEO]),
            features=tuple(feature_of(name, value) for name, value in features.items()),
            shape=shape,
            times=self._times(shape[0], frames.step_s),
            kept=cells,
        )

    def _times(self, count: int, step_s: float) -> tuple[int, ...]:
        """Return the position of each step in time of a video, for models that count seconds."""
        import torch

        if not self._time_scale:
            return ()
        places = torch.arange(count) * (self._time_scale * torch.tensor(step_s))
        return tuple(places.long().tolist())

    def _sound(self, content: Any) -> Any:
        """Return a sound's samples at the model's sampling rate. Raises: RequestError"""
        from dovetail.multimodal.sound import Samples, at_rate

        if isinstance(content, Sound):
            samples, rate_hz = content.samples, content.rate_hz
        elif isinstance(content, tuple):
            samples, rate_hz = content
        else:
            samples, rate_hz = content, self._rate_hz
        import numpy

        found: Samples = numpy.asarray(samples, dtype=numpy.float32)
        if found.ndim != 1 or not len(found):
            raise RequestError(
                f"a sound is samples of one channel, not an array of shape {found.shape}.",
                where=AUDIO,
                fix="give samples, or a pair of samples and their rate in Hz.",
            )
        return at_rate(found, int(rate_hz), self._rate_hz)

    def _encoded(self, kind: str, content: Embeddings) -> ReadMedium:
        """Return given vectors in place of a medium. Raises: RequestError"""
        blank = self._blank(kind)
        tensors = dict(content.tensors)
        vectors = tensors.pop(EMBEDS, None)
        vectors = tensors.pop(f"{kind}_embeds", None) if vectors is None else vectors
        grid = tensors.pop(f"{kind}_grid_thw", None)
        known = f"{kind}_embeds" + (f" and {kind}_grid_thw" if blank.shape else "")
        where = f"{kind}_embeds"
        if vectors is None or tensors or (grid is None) != (not blank.shape):
            raise RequestError(f"this model takes {known}, by these names.", where=where)
        if vectors.dim() == 3 and len(vectors) == 1:
            vectors = vectors[0]
        if vectors.dim() != 2 or vectors.shape[1] != self._vector_size:
            raise RequestError(
                f"a tensor of shape {list(vectors.shape)} is not what the model's encoder makes: "
                f"[vectors, {self._vector_size}] is.",
                where=where,
            )
        shape = () if grid is None else self._shape(grid.reshape(-1, 3))
        if shape and math.prod(shape) != len(vectors):
            raise RequestError(
                f"{kind}_grid_thw asks for {math.prod(shape)} vectors, and there are "
                f"{len(vectors)}.",
                where=where,
            )
        before, places, after = self._split(blank.text, kind)
        return ReadMedium(
            text=before + places[: len(self._word(kind))] * len(vectors) + after,
            num_rows=len(vectors),
            features=(feature_of(READY, vectors),),
            shape=shape,
        )

    def _blank(self, kind: str) -> ReadMedium:
        """Return a blank medium as read, for the text around its placeholders."""
        if kind not in self._blanks:
            if kind == AUDIO:
                zeros = package("numpy").zeros(self._rate_hz, dtype="float32")
                content: Any = Sound(samples=zeros, rate_hz=self._rate_hz)
            else:
                content = package("PIL.Image").new("RGB", (64, 64))
            self._blanks[kind] = self._read(kind, content, self._spec.options)
        return self._blanks[kind]

    def _word(self, kind: str) -> str:
        """Return the text of a kind's placeholder token."""
        word: str = self._processor.tokenizer.convert_ids_to_tokens(self.token_ids[kind])
        return word

    def _split(self, text: str, kind: str) -> tuple[str, str, str]:
        """Split the text into (before, placeholders, after). Raises: RequestError if there is other
        text between placeholders"""
        word = self._word(kind)
        start, end = text.find(word), text.rfind(word) + len(word)
        places = text[start:end]
        if start < 0 or places.replace(word, ""):
            raise RequestError(
                f"this model has words of its own within {kind}s, so their vectors alone are not "
                "enough.",
                where=f"{kind}_embeds",
                fix=f"send the {kind} itself.",
                code="unsupported_media",
            )
        return text[:start], places, text[end:]

    def _shape(self, grid: Any) -> tuple[int, ...]:
        """Return (time, height, width) in positions of a grid of patches; () without one."""
        if grid is None:
            return ()
        times, height, width = grid[0].tolist()
        return times, height // self._merged, width // self._merged


def _features(output: Mapping[str, Any]) -> tuple[Feature, ...]:
    """Return the tensors that a processor makes of a medium."""
    import torch

    return tuple(
        feature_of(name, value)
        for name, value in output.items()
        if name not in TEXT_FIELDS and isinstance(value, torch.Tensor)
    )


def kept_media(spec: MediaSpec) -> KeptMedia:
    """Return the cache of read media. Raises: ConfigError"""
    if not spec.shared_folder:
        return OwnMedia(spec.cache_bytes)
    try:
        return SharedMedia(spec.shared_folder, spec.cache_bytes, spec.cache_item_bytes)
    except OSError as error:
        raise ConfigError(
            f"no folder can be made in shared memory: {error}",
            where="--mm-processor-cache-type shm",
            fix="use lru.",
        ) from error


def _processor(model: ModelSpec, folder: str) -> Any:
    """Return a checkpoint's transformers processor. Raises: ConfigError"""
    try:
        return load_processor(folder, str(model.whole_config.get("model_type")))
    except Exception as error:
        raise ConfigError(
            f"the checkpoint's media processor cannot be made: {error}",
            where=model.path,
            fix=f"install what it needs (`{INSTALL}`), or serve the text part alone with "
            """`--limit-mm-per-prompt '{"image": 0, "video": 0, "audio": 0}'`.""",
        ) from error
