"""--pooler-config: its keys, and the checks of them that need only the model's facts."""

from __future__ import annotations

import logging

import msgspec

from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ACTIVATIONS, MAKES_VECTORS, ModelSpec

log = logging.getLogger(__name__)

POOLER_CONFIG = "--pooler-config"
_OF_VECTORS = ("normalize", "dimensions", "enable_chunked_processing", "max_embed_len")
_OF_CLASSES = ("softmax", "activation", "use_activation", "returned_token_ids")


class PoolerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of --pooler-config; for keys that are not set the checkpoint decides.

    `softmax`, `use_activation` and `activation` are three ways to choose whether class scores
    become probabilities; `activation` can also choose the function. With
    `enable_chunked_processing` a prompt longer than the context is embedded in pieces, up to a
    length of `max_embed_len` tokens (None: no limit).
    """

    pooling_type: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    softmax: bool | None = None
    activation: bool | str | None = None
    use_activation: bool | None = None
    step_tag_id: int | None = None
    returned_token_ids: tuple[int, ...] = ()
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None

    @property
    def activates(self) -> bool | None:
        """Return whether class scores become probabilities; None: the checkpoint decides."""
        given = (self.use_activation, self.activation, self.softmax)
        return next((bool(one) for one in given if one is not None), None)


def pooler_config(model_config: ModelConfig) -> PoolerConfig:
    """Return --pooler-config. Raises: ConfigError naming the key"""
    given = dict(model_config.pooler_config)
    try:
        pooler = msgspec.convert(given, PoolerConfig)
    except msgspec.ValidationError as error:
        known = ", ".join(PoolerConfig.__struct_fields__)
        raise ConfigError(f"{error}.", where=POOLER_CONFIG, fix=f"the keys are {known}.") from error
    _verify(pooler)
    return pooler


def verify_fits(pooler: PoolerConfig, model: ModelSpec, *, size: int, num_classes: int) -> None:
    """Check the keys against a model with vectors of `size` numbers, or with `num_classes` classes.
    Raises: ConfigError naming the key"""
    makes_vectors = model.head in MAKES_VECTORS
    for key in _OF_CLASSES if makes_vectors else _OF_VECTORS:
        if getattr(pooler, key) != getattr(PoolerConfig(), key):
            does = "makes vectors of prompts" if makes_vectors else "tells classes apart"
            log.warning("%s.%s has no effect: the model %s", POOLER_CONFIG, key, does)
    if pooler.dimensions is not None and not 1 <= pooler.dimensions <= size:
        raise _fault("dimensions", f"must be 1 to {size}, the size of the model's vectors.")
    if pooler.step_tag_id is not None and not 0 <= pooler.step_tag_id < model.vocab_size:
        raise _fault("step_tag_id", f"must be 0 to {model.vocab_size - 1}, a token's number.")
    if any(not 0 <= number < num_classes for number in pooler.returned_token_ids):
        raise _fault("returned_token_ids", f"must be 0 to {num_classes - 1}, numbers of classes.")


def _verify(pooler: PoolerConfig) -> None:
    """Check the keys as far as possible without a model. Raises: ConfigError naming the key"""
    if isinstance(pooler.activation, str) and pooler.activation not in ACTIVATIONS:
        raise _fault("activation", f"must be true, false or one of {', '.join(ACTIVATIONS)}.")
    given = {
        key: bool(value)
        for key in ("use_activation", "activation", "softmax")
        if (value := getattr(pooler, key)) is not None
    }
    if len(set(given.values())) > 1:
        raise _fault(" and ".join(given), "say different things.", "leave all but one of them out.")
    if pooler.max_embed_len is None:
        return
    if pooler.max_embed_len < 1:
        raise _fault("max_embed_len", "must be at least 1.")
    if not pooler.enable_chunked_processing:
        fix = "add enable_chunked_processing, or use --max-model-len."
        raise _fault("max_embed_len", "is the length of texts that are embedded in pieces.", fix)


def _fault(key: str, what: str, fix: str = "") -> ConfigError:
    return ConfigError(what, where=f"{POOLER_CONFIG}.{key}", fix=fix)
