"""The facts that the built-in families declare, against the sources of transformers."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.config.checkpoint.context_length import model_tokens
from dovetail.config.checkpoint.model_facts import TABLE, facts_of, has_rotary
from dovetail.errors import ConfigError
from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.data.spec import ModelSpec

ELSEWHERE = frozenset(
    {
        *("fuyu", "gemma4_assistant", "gemma4_unified_assistant", "got_ocr2"),
        *("git", "moss_transcribe_diarize", "musicgen", "musicgen_melody", "trocr", "whisper"),
    }
)
"""Types whose text model is another type's, or whose prompt is not text."""
UNUSED = frozenset({"jamba"})
"""Types whose source has a rotation that no layer uses."""

OWN = [name for name in registry.names("model_type") if name != TABLE]
TABLED: dict[str, ModelFacts] = dict(registry.admin.value_of("model_type", TABLE).types)
FACTS = TABLED | {name: facts_of({"model_type": name}) for name in OWN}


def config_class(model_type: str) -> Any:
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    return auto.CONFIG_MAPPING[model_type]


def types_without_rotary() -> set[str]:
    """Return the causal models of transformers whose source never speaks of rotary positions."""
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    modules = pytest.importorskip("transformers.models.auto.configuration_auto")
    models = Path(auto.__file__).parents[1]
    types = set()
    for model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        folder = models / modules.model_type_to_module_name(model_type)
        source = "".join(path.read_text() for path in folder.glob("modeling_*.py"))
        if source and not re.search("rotary|rope", source, re.IGNORECASE):
            types.add(model_type)
    return types


def test_types_without_rotary_are_those_of_transformers() -> None:
    theirs = types_without_rotary() - ELSEWHERE | UNUSED
    ours = {name for name, facts in FACTS.items() if facts.positions != "rotary"}
    assert theirs - ours == set()
    # Another name of gpt2's code; sources that name the rotation of layers that they do not have,
    # or have a property.
    aliases = {"gpt-sw3", "falcon_mamba", "nemotron_h", "kimi_linear", "glm5_next_text"}
    aliases |= {"inkling_text", "inkling2_text", "inkling2_loop_text"}
    aliases |= {"bigbird_pegasus", "blenderbot", "blenderbot-small", "mvp", "trocr"}
    encoders = {name for name, facts in FACTS.items() if facts.is_encoder or facts.encoder_input}
    assert ours - theirs - encoders == aliases


def test_no_type_is_declared_twice() -> None:
    assert set(OWN) & set(TABLED) == set()


REMOTE = {
    *("baichuan", "exaone", "internlm2", "kimi_k2", "llama_bidirec", "mimo", "minicpm", "new")
}
REMOTE |= {"minimax_m1", "minimax_text_01", "deci", "deepseek", "nemotron-nas"}
"""Types that only code beside the checkpoint knows."""
WHOLE = {"qwen2_vl", "qwen2_5_vl", "dots3_note"}
"""Types whose old checkpoints keep the text part's settings beside the encoder's."""
WORKED_OUT = {
    "axk2": {"first_k_dense_replace"},
    "bailing_hybrid": {"n_routed_experts"},
    "dots3_note_text": {"sliding_window"},
    "glm4_moe_lite": {"first_k_dense_replace"},
    "hy_v3": {"norm_topk_prob"},
    "phi4_multimodal": {"eos_token_id"},
    "qwen2_vl_text": {"sliding_window", "tie_word_embeddings"},
    "qwen2_5_vl_text": {"sliding_window", "tie_word_embeddings"},
    "qwen3_vl_text": {"tie_word_embeddings"},
    "qwen3_vl_moe_text": {"head_dim", "norm_topk_prob"},
    "recurrent_gemma": {"max_position_embeddings"},
    "t5": {"decoder_start_token_id"},
    "zamba": {
        *("attention_head_dim", "num_mem_blocks", "use_mem_rope", "use_shared_attention_adapter"),
    },
    "zamba2": {"attention_head_dim"},
}
"""Settings that no field of transformers' class has a default for: its code decides."""


@pytest.mark.parametrize(
    "model_type", [name for name in OWN if FACTS[name].defaults and name not in REMOTE | WHOLE]
)
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    theirs = config_class(model_type)
    fields = {f.name: f.default for f in dataclasses.fields(theirs)}
    fields |= getattr(theirs(), "rope_parameters", None) or {}
    attends = FACTS[model_type].positions != "none"
    ours = dict(FACTS[model_type].defaults)
    if not attends:  # what stands for heads where there are none is dovetail's own
        ours = {name: ours[name] for name in ours if name in fields}
    ours = {name: ours[name] for name in ours if name not in WORKED_OUT.get(model_type, ())}
    assert ours == {name: fields.get(name) for name in ours}


@pytest.mark.parametrize("model_type", ["gpt_neo", "opt", "xmod", "gpt2"])
def test_a_table_of_positions_has_an_end(model_type: str) -> None:
    spec = ModelSpec(
        path="m",
        architecture="A",
        hf_config={"model_type": model_type},
        dtype="float32",
        vocab_size=8,
        hidden_size=64,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=64,
        max_position_tokens=128,
    )
    assert not has_rotary(spec.hf_config)
    with pytest.raises(ConfigError, match="only 128 positions"):
        model_tokens(256, spec, may_exceed=True)


def test_facts_import_neither_torch_nor_a_model() -> None:
    code = (
        "import sys\n"
        "from dovetail.config.checkpoint.model_facts import facts_of\n"
        f"for name in {sorted(FACTS)!r}: facts_of({{'model_type': name}})\n"
        "print([n for n in sys.modules if n in ('torch', 'transformers')"
        " or n.startswith('dovetail_plugins.models')])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
