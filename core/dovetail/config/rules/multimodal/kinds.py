"""The kinds of media that a model takes, which depend on its plugin, and the allowed ones."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.checkpoint.media_tokens import PARTS, PROCESSOR, named_kinds
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.config.rules.model.architectures import registered
from dovetail.config.rules.model.model_impl import wanted_impl
from dovetail.config.rules.model.transformers_models import known_classes
from dovetail.config.rules.multimodal.settings import media_settings
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.multimodal import MultiModalConfig
from dovetail.interfaces.data.media_settings import MediaLimit
from dovetail.interfaces.data.spec import LOGITS, ModelSpec

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Files of processor settings for a checkpoint's media."""
TRANSFORMERS = "transformers"
"""The value of --model-impl for transformers' code."""


def kinds_of(model_config: ModelConfig, model: ModelSpec) -> tuple[str, ...]:
    """Return the kinds of media that a model takes. Its own plugin declares them. For a media class
    of transformers they are the kinds with a token in config.json."""
    if not model.whole_config:
        return ()
    if not _is_backed(model_config, model):
        kinds = facts_of(model.whole_config).media
        lacking = {kind for kind in kinds if not model.whole_config.get(PARTS.get(kind, ""))}
        has_some = any(kind not in lacking for kind in kinds if kind in PARTS)
        return tuple(k for k in kinds if not (has_some and k in PARTS and k in lacking))
    takes_any = model.head == LOGITS and model.architecture in known_classes().media
    return named_kinds(model.whole_config) if takes_any else ()


def allowed_kinds(
    model_config: ModelConfig, multimodal: MultiModalConfig, model: ModelSpec
) -> tuple[str, ...]:
    """Return the kinds of media that the model takes and the limits allow."""
    limits = media_settings(multimodal).limits
    found = kinds_of(model_config, model)
    return tuple(k for k in found if limits.get(k, MediaLimit()).count != 0)


def has_processor(model: ModelSpec) -> bool:
    """Return whether a checkpoint has processor settings for its media."""
    files = ((Path(model.path) / name).is_file() for name in PROCESSOR_FILES)
    return PROCESSOR in model.whole_config or any(files)


def is_backed_with_media(
    model_config: ModelConfig, multimodal: MultiModalConfig, model: ModelSpec
) -> bool:
    """Return whether transformers' code runs a model including its media."""
    is_backed = _is_backed(model_config, model)
    has_kinds = is_backed and bool(allowed_kinds(model_config, multimodal, model))
    return has_kinds and has_processor(model)


def _is_backed(model_config: ModelConfig, model: ModelSpec) -> bool:
    """Return whether transformers' code runs a model without the checkpoint's own code."""
    impl = wanted_impl(model_config)
    is_own = registered(model.architecture, model.head) is not None
    return model.code is None and (impl == TRANSFORMERS or (impl is None and not is_own))
