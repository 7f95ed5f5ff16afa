"""Layers that read another's KV cache: what is refused, what is counted, what the flag asks."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.model.shared_layers import leaves_out_tokens
from dovetail.config.rules.parallel.ranks import cached_model, check_division
from dovetail.config.rules.parallel.stages import check_sources, largest_stage
from dovetail.config.rules.steps.cache_size import kv_bytes, token_bytes
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend, AttentionQuery
from dovetail.interfaces.data.cache_facts import CacheFacts
from dovetail.interfaces.data.spec import ModelSpec, RankSpec, Selection
from dovetail_testing.contract import model_spec
from dovetail_testing.reference import ReferenceAttention

SLIDING, FULL = "sliding_attention", "full_attention"
KINDS = [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL]
SOURCES = (0, 1, 2, 3, 2, 3)
REPLAY = Selection(kind="model", name="replay", target="dovetail_testing.models:ReplayModel")


def sharing(**changes: Any) -> ModelSpec:
    """Return a model whose last two layers of six share caches, one of each kind sliding."""
    facts = CacheFacts(num_attention_layers=4, sources=SOURCES)
    fields: dict[str, Any] = {"layer_types": KINDS, "sliding_window": 8}
    made = model_spec(num_layers=6, num_heads=4, num_kv_heads=2, cache=facts, hf_config=fields)
    return msgspec.structs.replace(made, **changes)


def stages(*layers: int) -> RankSpec:
    return RankSpec(world_size=len(layers), num_stages=len(layers), stage_layers=layers)


def test_a_source_is_on_the_stage_of_its_reader() -> None:
    check_sources(sharing(), RankSpec())
    check_sources(sharing(), stages(2, 4))
    with pytest.raises(ConfigError, match=r"layer 4 reads .* layer 2, which is on another") as told:
        check_sources(sharing(), stages(3, 3))
    assert told.value.where == "--pipeline-parallel-size"
    assert "before layer 2" in str(told.value.fix)


def test_layers_that_keep_nothing_take_no_memory() -> None:
    plain = sharing(cache=None)
    per_token = token_bytes(plain, "float32")
    tokens, step = 100, 4
    assert kv_bytes(plain, "float32", tokens, step) == per_token * (3 * 100 + 3 * (8 + 4))
    assert kv_bytes(sharing(), "float32", tokens, step) == per_token * (2 * 100 + 2 * (8 + 4))


def test_a_stage_counts_the_layers_that_keep() -> None:
    largest = largest_stage(sharing(), stages(2, 4))
    assert largest.num_layers == 2 and sorted(largest.hf_config["layer_types"]) == [FULL, SLIDING]
    whole = kv_bytes(largest, "float32", 100, 4)
    assert whole == token_bytes(largest, "float32") * (100 + 8 + 4)


def test_the_larger_heads_count() -> None:
    facts = CacheFacts(num_attention_layers=4, sources=SOURCES, second_heads=(2, 32))
    large = sharing(cache=facts)
    assert token_bytes(large, "float32") == 4 * token_bytes(sharing(), "float32")
    halved = cached_model(large, RankSpec(world_size=2, tensor_size=2))
    assert halved.cache is not None and halved.cache.second_heads == (1, 32)


def test_all_heads_must_divide() -> None:
    pytest.importorskip("dovetail_plugins")
    divisible = registry.choose("model", "LlamaForCausalLM")
    facts = CacheFacts(num_attention_layers=4, sources=SOURCES, second_heads=(3, 32))
    with pytest.raises(ConfigError, match="3 KV heads can neither"):
        check_division(sharing(cache=facts), divisible, RankSpec(world_size=2, tensor_size=2))


def test_a_backend_is_asked() -> None:
    class Alone(ReferenceAttention):
        capabilities = frozenset({"window"})

    query = AttentionQuery(
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        head_size=16,
        block_tokens=16,
        uses_shared=True,
        uses_lse=True,
    )
    told: list[str] = AttentionBackend.lacks.__func__(Alone, query)  # type: ignore[attr-defined]
    assert "layers that read what another layer has written are not supported" in told
    assert "what layers share is not divided over ranks" in told


@pytest.mark.parametrize(
    ("model", "why"),
    [(sharing(cache=None), "no layer reads"), (sharing(), "replay computes all tokens")],
)
def test_why_the_flag_changes_nothing(
    model: ModelSpec, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert not leaves_out_tokens(Config.from_fields({}).cache, model, REPLAY)
    assert caplog.text == ""
    asked = Config.from_fields({"kv_sharing_fast_prefill": True})
    assert not leaves_out_tokens(asked.cache, model, REPLAY)
    assert why in caplog.text
