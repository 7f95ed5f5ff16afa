"""DeepSeekMoE and Nemotron NAS, which transformers does not have, against formulas made of its
Llama: from safetensors, and from GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail_plugins.gguf._config import read_config
from support.gguf_files import write_gguf
from support.gguf_models import loaded, logits_of, prompt
from support.ling_1 import LING_1
from support.published_cases import write_published
from support.uneven_llamas import BLOCKS, EXPERTS, mixture, uneven

pytest.importorskip("gguf")

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "Ling 1": {"norm_topk_prob": True, "first_k_dense_replace": 0},
    "dense first": {"first_k_dense_replace": 2, "n_shared_experts": 1},
    "all sparse": {"first_k_dense_replace": 0},
}
HEADS = [4, 0, 4, 4, 0, 4]
KV_HEADS = [2, 0, 0, 1, 0, 4]
INNER = [256, 512, 256, 0, 0, 512]
UNEVEN = {"head_count": HEADS, "head_count_kv": KV_HEADS, "feed_forward_length": INNER,
          "key_length": 8, "value_length": 8, "rope_dimension_count": 8}  # fmt: skip


def assert_same(path: Path, model: Any) -> None:
    tokens = prompt(40)
    (got,) = loaded(path).forward([(0, tokens)])
    torch.testing.assert_close(got, logits_of(model, tokens), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_deepseek_moe(case: str, tmp_path: Path) -> None:
    model = mixture(tmp_path / "hf", **CASES[case])
    assert_same(tmp_path / "hf", model)
    # Converters write no switch for DeepSeekMoE, whose published models do not renormalize.
    is_ling = bool(CASES[case].get("norm_topk_prob"))
    adders = {"expert_weights_norm": True if is_ling else None}
    name = "bailingmoe" if is_ling else "deepseek"
    write_gguf(tmp_path / "hf", tmp_path / "m.gguf", architecture=name, adders=adders)
    assert_same(tmp_path / "m.gguf", model)


def test_ling_1_as_published(tmp_path: Path) -> None:
    model = mixture(tmp_path / "hf", **CASES["Ling 1"])
    folder = tmp_path / "ling"
    write_published(tmp_path / "hf", folder, "BailingMoeForCausalLM", LING_1)
    flags: dict[str, Any] = {"dtype": "float32", "max_logprobs": -1, "use_tqdm_on_load": False}
    tokens = prompt(40)
    with LLM(str(folder), **flags) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1)
        (result,) = llm.generate([{"prompt_token_ids": tokens}], params, use_tqdm=False)
    (entry,) = result.outputs[0].logprobs
    got = torch.empty(len(entry.top_ids))
    got[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
    right = logits_of(model, tokens)[-1].log_softmax(-1)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "norm_head": True}))
    with pytest.raises(ConfigError, match="GGUF"):
        LLM(str(folder), **flags)


def test_nemotrons_blocks(tmp_path: Path) -> None:
    model = uneven(tmp_path / "hf")
    assert_same(tmp_path / "hf", model)
    write_gguf(tmp_path / "hf", tmp_path / "m.gguf", adders=UNEVEN)
    assert_same(tmp_path / "m.gguf", model)
    config = read_config(tmp_path / "m.gguf")
    assert config is not None
    assert len(config["block_configs"]) == len(BLOCKS)


def test_decilm_states_kv_heads_of_every_layer(tmp_path: Path) -> None:
    """DeciLM-7B: all blocks attend, and the list is the only difference between them."""
    counts = [2, 1, 4, 4, 2, 1]
    blocks = [{"attention": {"n_heads_in_group": 4 // n, "no_op": False,
                             "replace_with_linear": False},
               "ffn": {"no_op": False, "inner": 48}} for n in counts]  # fmt: skip
    own = {"model_type": "deci", "block_configs": None, "intermediate_size": 48,
           "num_key_value_heads_per_layer": counts}  # fmt: skip
    model = uneven(tmp_path / "hf", blocks=blocks, own=own)
    assert_same(tmp_path / "hf", model)
    write_gguf(tmp_path / "hf", tmp_path / "m.gguf", adders={"head_count_kv": counts})
    assert_same(tmp_path / "m.gguf", model)


def test_experts_are_counted(tmp_path: Path) -> None:
    mixture(tmp_path / "hf")
    write_gguf(tmp_path / "hf", tmp_path / "m.gguf")
    config = read_config(tmp_path / "m.gguf")
    assert config is not None
    same = set(EXPERTS) & set(config) - {"model_type"}
    assert {name: config[name] for name in same} == {name: EXPERTS[name] for name in same}


WIDE = {"hidden_size": 256, "head_dim": 64}
QUANTIZED: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "deepseek": (
        mixture,
        {**WIDE, "intermediate_size": 256, "moe_intermediate_size": 256},
        {"expert_weights_norm": None},
    ),
    "deci": (uneven, WIDE, {**UNEVEN, "key_length": 64, "value_length": 64,
                            "rope_dimension_count": 64}),
}  # fmt: skip


@pytest.mark.parametrize("case", QUANTIZED)
def test_their_matrices_may_be_quantized(case: str, tmp_path: Path) -> None:
    write, sizes, adders = QUANTIZED[case]
    model, given = write(tmp_path / "hf", **sizes), []

    def type_of(tensor: str) -> str:
        given.append(tensor)
        return ("Q4_K", "Q8_0", "Q6_K")[len(given) % 3]

    file, tokens = tmp_path / "m.gguf", prompt(24)
    meant = write_gguf(tmp_path / "hf", file, type_of, adders=adders)
    model.load_state_dict({name: torch.from_numpy(x.copy()) for name, x in meant.items()})
    right = logits_of(model, tokens)
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())
