"""PaliGemma, tiny: greedy text equal to transformers', whose prompts see themselves both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from support import tiny_wholes
from support.media_verdicts import FLAGS, media_verdict
from support.tiny_wholes import Own, write_whole
from support.verdicts import NATIVE

pytest.importorskip("PIL.Image", reason="Pillow is not installed")
ARCHITECTURE = "PaliGemmaForConditionalGeneration"
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 24,
    "sliding_window": 96,
}
TEXTS: dict[str, dict[str, Any]] = {"gemma": {}, "gemma2": GEMMA2}
BLOCKS = {"gemma": 8, "gemma2": 16}
"""Of a cache that does not hold all prompts at once; Gemma 2 has two sorts of layers."""


def written(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    usual = tiny_wholes.OWN["paligemma"]
    own = Own(
        config={**usual.config, "text_config": TEXTS[text]},
        words=usual.words,
        pictures=usual.pictures,
    )
    monkeypatch.setitem(tiny_wholes.OWN, "paligemma", own)
    return write_whole(folder, "paligemma", ARCHITECTURE)


@pytest.mark.parametrize("text", TEXTS)
def test_greedy_text_is_that_of_transformers(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image, two, none, and one again; all in one batch and each alone, and with a cache that
    does not hold them all, so that some are computed again."""
    folder = written(tmp_path, text, monkeypatch)
    for flags in ({}, {"num_gpu_blocks_override": BLOCKS[text], "block_size": 16}):
        verdict = media_verdict(folder, **flags)
        assert (verdict.state, verdict.reason) == (NATIVE, "")


def test_prompts_are_computed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No prefix is kept, no prompt is cut, and none is longer than a window."""
    folder = written(tmp_path, "gemma2", monkeypatch)
    spec = resolve(Config.from_fields({"model": str(folder), "dtype": "float32"}))
    assert not spec.cache.uses_prefix_cache
    assert not spec.schedule.uses_chunked_prefill
    assert spec.schedule.max_model_tokens == 96
    flags = {**FLAGS, "model": str(folder), "max_model_len": 96}
    transfer = {"kv_connector": "shared_storage", "kv_role": "kv_both"}
    with pytest.raises(ConfigError, match="no prefix finds it"):
        resolve(Config.from_fields({**flags, "kv_transfer_config": transfer}))
    with pytest.raises(ConfigError, match="that see themselves both ways limits the context"):
        resolve(Config.from_fields({**flags, "max_model_len": 97}))
    with pytest.raises(ConfigError, match="must hold a whole prompt"):
        resolve(Config.from_fields({**flags, "max_num_batched_tokens": 32}))


def test_text_alone_sees_what_is_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without images nothing is special: prompts may be cut, and prefixes are found."""
    folder = written(tmp_path, "gemma", monkeypatch)
    none = {"model": str(folder), "dtype": "float32", "limit_mm_per_prompt": {"image": 0}}
    spec = resolve(Config.from_fields(none))
    assert spec.cache.uses_prefix_cache and spec.schedule.uses_chunked_prefill
