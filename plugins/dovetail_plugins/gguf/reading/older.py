"""Settings that files of older converters lack: sizes as their tensors have them, and numbers that
the family's class has when config.json does not state them. Each is said once in the log.

Imports no torch. Source of the defaults: the config classes of transformers; a test compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dovetail.config.checkpoint.model_facts import facts_of, has_rotary

if TYPE_CHECKING:
    from dovetail_plugins.gguf.reading.metadata import Settings

log = logging.getLogger(__name__)

THETAS: Mapping[str, float] = {
    "apertus": 12e6,
    "bitnet": 5e5,
    "cohere": 5e5,
    "ernie4_5": 5e5,
    "ernie4_5_moe": 5e5,
    "exaone": 5e5,
    "gpt_oss": 15e4,
    "lfm2": 1e6,
    "lfm2_moe": 1e6,
    "llama4_text": 5e5,
    "minimax_m2": 5e6,
    "mixtral": 1e6,
    "olmo3": 5e5,
    "phimoe": 1e6,
    "smollm3": 2e6,
}
"""Model type -> the base of its rotary embedding if config.json states none; 10,000 for others."""


@cache
def say_once(path: str, text: str) -> None:
    """Log what is assumed of a file, the first time."""
    log.info("%s: %s", path, text)


def _head_size(settings: Settings) -> int | None:
    """Return the size of heads by the rows of keys, None if it is the usual one."""
    heads = settings.largest(".attention.head_count")
    groups = settings.find(".attention.head_count_kv", (int, list)) or heads
    keys = settings.first("attn_k.weight")
    if keys is None or heads <= 0:
        return None
    count = groups
    if isinstance(groups, list):
        count = dict(enumerate(groups)).get(settings.blocks_with("attn_k.weight")[0])
    if not isinstance(count, int) or count <= 0 or keys.shape[0] % count:
        return None
    size: int = keys.shape[0] // count
    return None if size == settings.number(".embedding_length") // heads else size


def _expert_size(settings: Settings) -> int | None:
    """Return the inner size of experts by their matrices."""
    together, alone = settings.first("ffn_up_exps.weight"), settings.first("ffn_up.0.weight")
    if together is not None and len(together.shape) == 3:
        return together.shape[1]
    return None if alone is None else alone.shape[0]


def _shared_size(settings: Settings) -> int | None:
    """Return the inner size of the shared experts by their matrix."""
    shared = settings.first("ffn_up_shexp.weight")
    return None if shared is None else shared.shape[0]


_SIZES: Mapping[str, Callable[[Settings], int | None]] = {
    ".attention.key_length": _head_size,
    ".expert_feed_forward_length": _expert_size,
    ".expert_shared_feed_forward_length": _shared_size,
}
"""Setting -> its value by the tensors' shapes."""


def size_of(settings: Settings, name: str) -> int | None:
    """Return a size that a file's settings lack, None if its tensors do not tell it either."""
    size = _SIZES[name](settings) if name in _SIZES else None
    if size is not None:
        say_once(
            str(settings.model.path),
            f"{settings.architecture}{name} is not in the file; it is {size} by its tensors.",
        )
    return size


_EPSILONS = (".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon")


def usual_numbers(settings: Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a config.json that the file does not state: those of its class."""
    kind = str(config["model_type"])
    found: dict[str, Any] = {}
    lacks_base = settings.find(".rope.freq_base", float) is None
    if lacks_base and "rope_theta" in config and has_rotary(config):
        found["rope_theta"] = THETAS.get(kind, config["rope_theta"])
    if "rms_norm_eps" in config and all(settings.find(key, float) is None for key in _EPSILONS):
        found["rms_norm_eps"] = facts_of(config).defaults.get(
            "rms_norm_eps", config["rms_norm_eps"]
        )
    for name, value in found.items():
        say_once(
            str(settings.model.path),
            f"{name} is not in the file; {value:g} is used, the default of {kind}.",
        )
    return found
