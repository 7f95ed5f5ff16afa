"""Bloom, Falcon, MPT, GPT-J, CodeGen and Baichuan: divided over ranks and stages, recorded, by the
names of other files; Baichuan, which transformers does not have, against Llama.

Their logits against transformers are in test_against_transformers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail.layers.attention.alibi import alibi_slopes
from dovetail_kernels.cpu.library import missing_reason
from dovetail_testing.harness import PagedModel, StagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.inside import programs_of, recorder_of, runner_of
from support.thread_ranks import DividedModel

TOLERANCE = 1e-4
GROUPED = {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}
RW = {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True}
DIVIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "slopes": ("BloomForCausalLM", {}),
    "six slopes": ("BloomForCausalLM", {"hidden_size": 48, "n_head": 6}),
    "one kv head on both": ("FalconForCausalLM", {}),
    "groups": ("FalconForCausalLM", GROUPED),
    "scaled slopes": ("FalconForCausalLM", RW),
    "no biases": ("MptForCausalLM", {}),
    "head bias": ("GPTJForCausalLM", {}),
    "four blocks": ("CodeGenForCausalLM", {}),
}
PROMPT = torch.randint(3, VOCAB_SIZE, (21,), generator=torch.Generator().manual_seed(15)).tolist()


def pieces(model: PagedModel | StagedModel | DividedModel) -> torch.Tensor:
    """Return the logits of a prompt in pieces."""
    cuts = ((0, 9), (9, 20), (20, 21))
    return torch.cat([model.forward([(0, PROMPT[a:b])])[0] for a, b in cuts])


@pytest.mark.parametrize("case", DIVIDED)
def test_ranks_and_stages_compute_as_one(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, fields = DIVIDED[case]
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    alone = pieces(PagedModel(load_model(path)))
    divided = pieces(DividedModel(path, 2, monkeypatch))
    assert (divided - alone).abs().max() <= TOLERANCE
    staged = StagedModel(lambda rank: load_model(path, rank=rank), (1, 1))
    assert torch.equal(pieces(staged), alone)


@pytest.mark.parametrize(
    "family", ["BloomForCausalLM", "FalconForCausalLM", "MptForCausalLM", "GPTJForCausalLM"]
)
def test_names_of_checkpoints_without_a_head(family: str, tmp_path: Path) -> None:
    """Files of published models begin where the trunk does; some hold masks or frequencies."""
    path = write_tiny_checkpoint(tmp_path, family)
    wanted = pieces(PagedModel(load_model(path)))
    tensors = load_file(path / "model.safetensors")
    bare = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    masks = {"h.0.attn.bias": torch.ones(4, 4), "h.0.attn.masked_bias": torch.ones(1)}
    angles = {"h.0.self_attention.maybe_rotary.inv_freq": torch.ones(4)}
    extra = {"GPTJForCausalLM": masks, "FalconForCausalLM": angles}.get(family, {})
    save_file({**bare, **extra}, path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(pieces(PagedModel(load_model(path))), wanted)


@pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("BloomForCausalLM", {}),
        ("FalconForCausalLM", {**RW, "hidden_size": 64}),
        ("GPTJForCausalLM", {"n_embd": 64}),
    ],
)
def test_steps_are_recorded(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, family, **fields)
    wish = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    with LLM(model=str(path), max_model_len=64, dtype="float32") as llm:
        llm.generate([[5, 7, 9, 11], [6, 8, 4]], wish, use_tqdm=False)
        recorded = recorder_of(runner_of(llm))
        assert llm.spec.run.attention.name == "native_cpu"
        assert recorded is not None and recorded.reason is None
        assert programs_of(recorded)[2, False] is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [("prefix_lm", True), ("qk_ln", True), ("alibi", False), ("attn_type", "multiquery_attention")],
)
def test_what_mpt_lacks_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, "MptForCausalLM", attn_config={field: value})
    with pytest.raises(ConfigError) as caught:
        load_model(path)
    assert caught.value.where == f"config.json: attn_config.{field}"


def test_slopes_are_those_of_the_paper() -> None:
    """Its code: what a power of two has, then every other one of the next power."""
    assert alibi_slopes(8) == tuple(2.0**-n for n in range(1, 9))
    assert alibi_slopes(12) == (*alibi_slopes(8), *alibi_slopes(16)[:8:2])
    assert alibi_slopes(2, last_exponent=4) == (0.25, 0.0625)


BAICHUAN: dict[str, tuple[str, dict[str, Any]]] = {
    "7b": ("BaiChuanForCausalLM", {"max_position_embeddings": 128}),
    "13b": ("BaichuanForCausalLM", {"num_attention_heads": 6, "hidden_size": 48}),
    "2-7b": ("BaichuanForCausalLM", {"max_position_embeddings": 128, "z_loss_weight": 0}),
    "2-13b": ("BaichuanForCausalLM", {"z_loss_weight": 0}),
}
"""By name: the class and what is peculiar in config.json."""


def write_baichuan(folder: Path, name: str) -> tuple[Path, Any]:
    """Write a random Baichuan; return its folder, and transformers' Llama of the same weights."""
    import transformers

    architecture, fields = BAICHUAN[name]
    sizes = {"hidden_size": 32, "num_attention_heads": 4} | fields
    heads = sizes["num_attention_heads"]
    shape = {"hidden_size": sizes["hidden_size"], "num_attention_heads": heads}
    path = write_tiny_checkpoint(folder, "LlamaForCausalLM", num_key_value_heads=heads, **shape)
    llama = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    tensors = load_file(path / "model.safetensors")
    for layer in range(2):
        start = f"model.layers.{layer}.self_attn."
        parts = [tensors.pop(f"{start}{part}_proj.weight") for part in "qkv"]
        tensors[f"{start}W_pack.weight"] = torch.cat(parts)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    kept = ("vocab_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps", "hidden_act")
    said = json.loads((path / "config.json").read_text())
    config = {key: said[key] for key in kept} | {"model_type": "baichuan", "model_max_length": 128}
    config |= {"architectures": [architecture], **sizes}
    (path / "config.json").write_text(json.dumps(config))
    return path, llama.eval()


def baichuan_logits(llama: Any, config: dict[str, Any], tokens: list[int]) -> torch.Tensor:
    """Return the logits by the published formulas, laid over Llama's: ALiBi goes in with the mask
    where nothing is rotated, and Baichuan 2's head is a matrix of unit rows."""
    rules: dict[str, Any] = {}
    if "max_position_embeddings" not in config:
        heads, at = config["num_attention_heads"], torch.arange(len(tokens))
        power = 2 ** int(math.log2(heads))
        slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
        slopes += [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
        bias = torch.tensor(slopes)[:, None, None] * (at[None, :] - at[:, None])
        hidden = at[None, :] > at[:, None]
        rules["attention_mask"] = bias.masked_fill(hidden, torch.finfo(torch.float32).min)[None]
        width = config["hidden_size"] // heads
        still = torch.ones(1, len(tokens), width), torch.zeros(1, len(tokens), width)
        llama.model.rotary_emb.forward = lambda *args, **others: still
    states = llama.model(torch.tensor([tokens]), use_cache=False, **rules).last_hidden_state[0]
    head = llama.lm_head.weight
    if "z_loss_weight" in config:
        head = head / head.norm(dim=1, keepdim=True)
    return states @ head.T


@pytest.mark.parametrize("name", BAICHUAN)
def test_baichuan(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, llama = write_baichuan(tmp_path, name)
    config = json.loads((path / "config.json").read_text())
    with torch.inference_mode():
        wanted = baichuan_logits(llama, config, PROMPT)
    assert wanted.std() > 0.05
    assert (pieces(PagedModel(load_model(path))) - wanted).abs().max() <= TOLERANCE
    divided = pieces(DividedModel(path, 2, monkeypatch))
    assert (divided - wanted).abs().max() <= TOLERANCE


def test_the_head_is_normed_before_it_is_quantized(tmp_path: Path) -> None:
    path, llama = write_baichuan(tmp_path, "2-7b")
    config = json.loads((path / "config.json").read_text())
    wish = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
    with torch.inference_mode():
        wanted = baichuan_logits(llama, config, PROMPT)[-1].log_softmax(-1)
    with LLM(
        model=str(path), max_model_len=64, dtype="float32", quantization="int8", max_logprobs=-1
    ) as llm:
        (result,) = llm.generate([PROMPT], wish, use_tqdm=False)
    assert result.outputs[0].logprobs is not None
    (place,) = result.outputs[0].logprobs
    found = torch.empty(VOCAB_SIZE)
    found[list(place.top_ids)] = torch.tensor(place.top_logprobs)
    assert (found - wanted).abs().max() < 0.2, "1.2 where the rows are as they are stored"
