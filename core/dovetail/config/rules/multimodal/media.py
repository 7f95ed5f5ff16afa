"""Media in prompts: whether the model takes any, and how they are processed."""

from __future__ import annotations

import json
import logging
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.model_facts import facts_of, media_see_all
from dovetail.config.rules.adapters import MEDIA_LORAS
from dovetail.config.rules.multimodal.kinds import PROCESSOR_FILES, allowed_kinds, has_processor
from dovetail.config.rules.multimodal.settings import media_settings
from dovetail.config.sections.lora import LoRAConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.media import MediaSpec
from dovetail.interfaces.data.media_settings import AUDIO, MIB, VIDEO, MediaSettings
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import ModelSpec, RunSpec

log = logging.getLogger(__name__)

GIB = 1 << 30
USUAL_IMAGE_ROWS = 256
"""Vectors of a Gemma 3 image if config.json does not say."""
SPEECH_RATE_HZ = 16_000
"""The sampling rate that speech models are trained on."""
VALUE_BYTES = 4
SHARED = Path("/dev/shm")
CACHE_FLAG, PRUNING_FLAG = "--mm-processor-cache-type", "--video-pruning-rate"
VECTORS_FLAG, VECTORS_WORD = "--enable-prompt-embeds", "vectors"


def _shared_folder() -> str:
    """Return the path of a private folder in shared memory, which is not created yet."""
    base = SHARED if SHARED.is_dir() else Path(tempfile.gettempdir())
    return str(base / f"dovetail-media-{os.getuid()}" / secrets.token_hex(8))


def media_spec(
    model_config: ModelConfig,
    lora: LoRAConfig,
    multimodal: MultiModalConfig,
    parallel: ParallelConfig,
    model: ModelSpec,
) -> MediaSpec | None:
    """Return how media are processed, None if the model takes none or none are allowed. It is also
    None, with a warning, if the checkpoint has no processor settings. Raises: ConfigError"""
    settings = media_settings(multimodal)
    kinds = allowed_kinds(model_config, multimodal, model)
    if kinds and not has_processor(model):
        log.warning(
            "%s has no %s, so the text part is served alone and prompts with media (%s) are "
            "refused; add the file to serve them.",
            model.path,
            " or ".join(PROCESSOR_FILES),
            ", ".join(kinds),
        )
        kinds = ()
    adapters = _adapters(lora, kinds)
    _tell_adapters(model, kinds, adapters)
    if not kinds:
        _pruning_rate(multimodal, kinds)
        return None
    if media_see_all(model.whole_config):
        _verify_seen_whole(parallel, model)
    cache_type = multimodal.mm_processor_cache_type
    cache = registry.admin.value_of("mm_cache", cache_type, where=CACHE_FLAG)
    return MediaSpec(
        kinds=kinds,
        options=dict(multimodal.mm_processor_kwargs),
        cache_bytes=int(multimodal.mm_processor_cache_gb * GIB),
        cache_item_bytes=multimodal.mm_shm_cache_max_object_size_mb * MIB,
        shared_folder=_shared_folder() if cache == "shm" else "",
        settings=settings,
        interleaves=multimodal.interleave_mm_strings,
        adapters=adapters,
        pruning_rate=_pruning_rate(multimodal, kinds),
    )


def _pruning_rate(multimodal: MultiModalConfig, kinds: Sequence[str]) -> float:
    """Return the share of a video's vectors to leave out. Raises: ConfigError"""
    rate = multimodal.video_pruning_rate or 0.0
    if rate == 1.0:
        raise ConfigError(
            "nothing of a video would be left.", where=PRUNING_FLAG, fix="give less than 1."
        )
    if rate and VIDEO not in kinds:
        raise ConfigError("no videos are taken.", where=PRUNING_FLAG, fix="leave the flag out.")
    return rate


def _verify_seen_whole(parallel: ParallelConfig, model: ModelSpec) -> None:
    """Raise ConfigError if not all tokens of an image can see each other."""
    alone = """serve the text part alone with `--limit-mm-per-prompt '{"image": 0}'`."""
    if divides_cache(parallel):
        raise ConfigError(
            "images that are seen both ways need the whole KV cache of a request on each rank.",
            where="--decode-context-parallel-size",
            fix=f"use 1, or {alone}",
        )
    facts = facts_of(model.whole_config)
    if facts.prompts_see_all or isinstance(facts.media_see_all, str):
        return  # no prompt is longer than the window, or windows limit what images see
    rows = int(model.whole_config.get("mm_tokens_per_image") or USUAL_IMAGE_ROWS)
    window = model.hf_config.get("sliding_window")
    if window is not None and rows > window:
        raise ConfigError(
            f"an image of {rows} vectors does not fit into the window of {window} tokens.",
            where="config.json: mm_tokens_per_image",
            fix=alone,
        )


def divides_cache(parallel: ParallelConfig) -> bool:
    """Return whether ranks divide the KV cache of each request."""
    return parallel.decode_context_parallel_size > 1


def encoder_mode(multimodal: MultiModalConfig) -> str:
    """Return how ranks divide an encoder. Raises: PluginError"""
    given = multimodal.mm_encoder_tp_mode
    return str(registry.admin.value_of("mm_encoder_tp_mode", given, where="--mm-encoder-tp-mode"))


def encodings_bytes(
    model_config: ModelConfig,
    multimodal: MultiModalConfig,
    model: ModelSpec,
    schedule: ScheduleSpec,
) -> int:
    """Return the memory of all cached encodings, and of those computed in a step. It is 0 if there
    are none, or --skip-mm-profiling excludes them."""
    if multimodal.skip_mm_profiling or not has_processor(model):
        return 0
    if not allowed_kinds(model_config, multimodal, model):
        return 0
    vision = model.whole_config.get("vision_config") or {}
    size = model.hidden_size * (1 + len(vision.get("deepstack_visual_indexes") or ()))
    rows = schedule.kept_encoder_rows + schedule.encoder_rows
    return rows * size * VALUE_BYTES


def takes_vectors(model_config: ModelConfig, run: RunSpec) -> bool:
    """Return whether requests may send vectors instead of a prompt. Raises: ConfigError if the
    model does not support them"""
    if not model_config.enable_prompt_embeds:
        return False
    if run.pooling is not None or run.model.encoder is not None:
        what = "only a decoder that generates text reads embeddings as its prompt."
        raise ConfigError(what, where=VECTORS_FLAG, fix="leave the flag out.")
    if VECTORS_WORD not in registry.admin.load_selection(run.model_plugin).capabilities:
        raise ConfigError(
            f"the model plugin {run.model_plugin.name} reads tokens alone.",
            where=VECTORS_FLAG,
            fix=f"leave the flag out, or use a plugin that claims {VECTORS_WORD}.",
        )
    return True


def _adapters(lora: LoRAConfig, kinds: Sequence[str]) -> dict[str, str]:
    """Return media kind -> the adapter for prompts with such media, which has the kind's name.
    Raises: ConfigError for a kind that the model does not take"""
    given = lora.default_mm_loras
    for kind, path in given.items():
        if kind not in kinds:
            raise ConfigError(
                f'the model takes no media of the kind "{kind}"'
                + (f", only {', '.join(kinds)}." if kinds else "."),
                where=MEDIA_LORAS,
                fix="leave it out.",
            )
        if not isinstance(path, str) or not path.strip():
            raise ConfigError(
                f"{path!r} is not the path of an adapter.",
                where=f"{MEDIA_LORAS} {kind}",
                fix='write {"image": PATH}.',
            )
    return {kind: kind for kind in given}


def _tell_adapters(model: ModelSpec, kinds: Sequence[str], used: Mapping[str, str]) -> None:
    """Log the checkpoint's adapters that its media need but that are not used."""
    folders = facts_of(model.whole_config).media_adapters
    wanted = {kind: Path(model.path, name) for kind, name in folders.items() if kind in kinds}
    unused = {kind: str(p) for kind, p in wanted.items() if kind not in used and p.is_dir()}
    if unused:
        log.warning(
            "%s has adapters for its media that are not used: give --enable-lora %s '%s'.",
            model.path,
            MEDIA_LORAS,
            json.dumps(unused),
        )


def sound_settings(multimodal: MultiModalConfig, model: ModelSpec) -> MediaSettings | None:
    """Return how sounds are read for transcription, None if it is not a speech model. Raises:
    ConfigError"""
    if model.encoder is None or model.encoder.kind != AUDIO:
        return None
    settings = media_settings(multimodal)
    audio = msgspec.structs.replace(settings.options.audio, sampling_rate=SPEECH_RATE_HZ)
    options = msgspec.structs.replace(settings.options, audio=audio)
    return msgspec.structs.replace(settings, options=options)
