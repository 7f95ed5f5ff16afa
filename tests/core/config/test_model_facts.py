"""The one table of model types, against the sources of transformers and by those who ask it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.lengths import model_tokens
from dovetail.config.model_facts import MODEL_FACTS, facts_of, has_rotary
from dovetail.config.rope import with_rope
from dovetail.errors import ConfigError
from dovetail.inspect.memory import tables_bytes
from dovetail.interfaces.spec import ModelSpec

ELSEWHERE = frozenset(
    {
        *("fuyu", "gemma4_assistant", "gemma4_unified_assistant", "got_ocr2"),
        *("git", "moss_transcribe_diarize", "musicgen", "musicgen_melody", "trocr", "whisper"),
    }
)
"""Types whose text model is another type's, or whose prompt is not text."""


def spec_of(model_type: str, **config: Any) -> ModelSpec:
    return ModelSpec(
        path="m",
        architecture="A",
        hf_config={"model_type": model_type, **config},
        dtype="float32",
        vocab_size=8,
        hidden_size=64,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=64,
        max_position_tokens=128,
    )


def types_without_rotary() -> set[str]:
    """Return the causal models of transformers whose source never speaks of rotary positions."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    modules = pytest.importorskip("transformers.models.auto.configuration_auto")
    models = Path(auto.__file__).parents[1]
    found = set()
    for model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        folder = models / modules.model_type_to_module_name(model_type)
        source = "".join(path.read_text() for path in folder.glob("modeling_*.py"))
        if source and not re.search("rotary|rope", source, re.IGNORECASE):
            found.add(model_type)
    return found


def test_types_without_rotary_are_those_of_transformers() -> None:
    theirs = types_without_rotary() - ELSEWHERE
    ours = {name for name, facts in MODEL_FACTS.items() if facts.positions != "rotary"}
    assert theirs - ours == set()
    aliases = {"gpt-sw3"}  # another name of gpt2's code
    assert ours - theirs == aliases


@pytest.mark.parametrize(
    "model_type",
    sorted(name for name, facts in MODEL_FACTS.items() if facts.positions != "rotary"),
)
def test_everybody_agrees_on_who_has_no_rotary(model_type: str) -> None:
    config = {"model_type": model_type}
    with pytest.raises(ConfigError, match="no rotary embedding") as caught:
        with_rope(config, 10000.0, {})
    assert caught.value.where == "--rope-theta"
    assert tables_bytes(spec_of(model_type), 128) == 0
    assert not has_rotary(config)


def test_alibi_may_be_a_switch() -> None:
    assert has_rotary({"model_type": "falcon"})
    assert tables_bytes(spec_of("falcon"), 128) > 0
    assert tables_bytes(spec_of("falcon", alibi=True), 128) == 0
    with pytest.raises(ConfigError, match="no rotary embedding"):
        with_rope({"model_type": "falcon", "alibi": True}, 10000.0, {})


@pytest.mark.parametrize("model_type", ["gpt_neo", "opt", "xmod"])
def test_a_table_of_positions_has_an_end(model_type: str) -> None:
    with pytest.raises(ConfigError, match="only 128 positions"):
        model_tokens(256, spec_of(model_type), may_exceed=True)
    assert model_tokens(256, spec_of("llama"), may_exceed=True) == 256


def test_unknown_types_are_usual() -> None:
    assert facts_of({}) == facts_of({"model_type": "no-such"})
    assert has_rotary({"model_type": "no-such"})
