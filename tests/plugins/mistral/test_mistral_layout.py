"""Mistral's own layout: the weights mean what transformers' do, and the settings are all used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail_plugins.mistral._names import halves_apart, name_of
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.mistral_layout import neighbours, write_mistral

VOCAB = 320
TOKENS = [(11 * i * i + 5 * i) % VOCAB for i in range(14)]
CASES = {
    "mistral": ("MistralForCausalLM", {}, 1),
    "tied": ("MistralForCausalLM", {"tie_word_embeddings": True, "sliding_window": None}, 1),
    "mixtral": ("MixtralForCausalLM", {"head_dim": 8}, 3),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Mistral as transformers writes it."""
    return write_tiny_checkpoint(tmp_path_factory.mktemp("hf") / "hf", "MistralForCausalLM")


@pytest.mark.parametrize("case", CASES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    import transformers

    architecture, fields, num_files = CASES[case]
    theirs = write_tiny_checkpoint(tmp_path / "hf", architecture, **fields)
    own = write_mistral(theirs, tmp_path / "own", num_files=num_files)
    model = transformers.AutoModelForCausalLM.from_pretrained(theirs, dtype=torch.float32)
    with torch.inference_mode():
        wanted = model.eval()(torch.tensor([TOKENS])).logits[0]
    for load_format in ("mistral", "auto"):
        (found,) = PagedModel(load_model(own, load_format=load_format)).forward([(0, TOKENS)])
        assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_rows_turn_as_the_papers_pairs_do() -> None:
    """Scores of neighbouring pairs turned as complex numbers equal those of half-split heads."""
    random = torch.Generator().manual_seed(0)
    weights = [torch.randn(8, 6, generator=random) for _ in range(2)]
    x = torch.randn(5, 6, generator=random)
    angles = torch.outer(torch.arange(5.0), 100.0 ** -torch.arange(0, 1, 0.25))
    turn = torch.polar(torch.ones_like(angles), angles)
    pairs = [torch.view_as_complex((x @ w.T).view(5, 4, 2)) * turn for w in weights]
    plain = [torch.view_as_real(p).flatten(1) for p in pairs]
    cos, sin = (f(angles).repeat(1, 2) for f in (torch.cos, torch.sin))
    split = []
    for weight in weights:
        y = x @ halves_apart(weight, 1).T
        split.append(y * cos + torch.cat([-y[:, 4:], y[:, :4]], dim=1) * sin)
    assert torch.allclose(plain[0] @ plain[1].T, split[0] @ split[1].T, atol=1e-4)
    assert torch.equal(halves_apart(neighbours(weights[0], 2), 2), weights[0])


def test_scales_of_eight_bit_weights_are_named() -> None:
    assert name_of("layers.3.attention.wq.qscale_weight").endswith("q_proj.weight_scale")
    assert name_of("layers.3.feed_forward.w2.qscale_act") == (
        "model.layers.3.mlp.down_proj.input_scale"
    )
    packed = torch.arange(8, dtype=torch.uint8).view(torch.float8_e4m3fn).view(8, 1)
    found = halves_apart(packed, 2).view(torch.uint8).flatten().tolist()
    assert found == [0, 2, 1, 3, 4, 6, 5, 7]


def test_through_the_engine_with_its_own_tokenizer(source: Path, tmp_path: Path) -> None:
    own = write_mistral(source, tmp_path / "own")
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    found = []
    for model, flags in (
        (source, {"tokenizer": str(own), "tokenizer_mode": "mistral"}),
        (own, {}),
        (own, {"load_format": "mistral", "config_format": "mistral", "tokenizer_mode": "mistral"}),
    ):
        with LLM(model=str(model), use_tqdm_on_load=False, **flags) as llm:
            (answer,) = llm.generate(["the inné 12"], greedy, use_tqdm=False)
        found.append((answer.prompt_token_ids, answer.outputs[0].token_ids))
    assert found[0] == found[1] == found[2]
    assert found[0][0][0] == 1


def facts(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings that come of a changed params.json."""
    path = folder / "params.json"
    kept = path.read_text()
    path.write_text(json.dumps({k: v for k, v in (json.loads(kept) | changes).items() if v != ...}))
    try:
        return load_model_facts(folder).hf_config
    finally:
        path.write_text(kept)


def test_settings(source: Path, tmp_path: Path) -> None:
    own = write_mistral(source, tmp_path / "own")
    assert facts(own)["torch_dtype"] == "float32"
    assert facts(own, rope_theta=..., sliding_window=None)["rope_theta"] == 1e6
    assert facts(own, rope_theta=...)["rope_theta"] == 1e4
    assert facts(own, max_seq_len=...)["max_position_embeddings"] == 32768
    yarn = {"factor": 16, "original_max_position_embeddings": 64, "apply_scale": False}
    rope = facts(own, yarn=yarn)["rope_scaling"]
    assert (rope["rope_type"], rope["attention_factor"], rope["beta_fast"]) == ("yarn", 1.0, 32.0)
    stored = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    assert facts(own, quantization=stored)["quantization_config"] == {
        "quant_method": "fp8",
        "activation_scheme": "static",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"vision_encoder": {"hidden_size": 8}},
        {"q_lora_rank": 8},
        {"sliding_window": [4, 8]},
        {"moe": {"num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1}},
        {"quantization": {"qformat_weight": "unheard of"}},
        {"dim": ...},
        {"yarn": {"factor": 2}},
        {"causal": False},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_built_is_told(source: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    own = write_mistral(source, tmp_path / "own")
    key = next(iter(changes))
    with pytest.raises(ConfigError, match=key) as caught:
        facts(own, **changes)
    assert "params.json" in str(caught.value.where)


def test_both_layouts_in_one_folder(source: Path, tmp_path: Path) -> None:
    """config.json and its files come first; the flag chooses the other."""
    own = write_mistral(source, tmp_path / "own")
    for file in source.iterdir():
        shutil.copy(file, own / file.name)
    params = json.loads((own / "params.json").read_text())
    (own / "params.json").write_text(json.dumps(params | {"norm_eps": 0.5}))
    found = {}
    for name in ("auto", "hf", "mistral"):
        spec = resolve(Config.from_fields({"model": str(own), "config_format": name}))
        found[name] = spec.run.model.hf_config["rms_norm_eps"]
    assert found["auto"] == found["hf"] != 0.5
    assert found["mistral"] == 0.5


def test_heads_that_do_not_fit_are_told(source: Path, tmp_path: Path) -> None:
    own = write_mistral(source, tmp_path / "own")
    params = json.loads((own / "params.json").read_text())
    (own / "params.json").write_text(json.dumps(params | {"n_heads": 6, "head_dim": 8}))
    with pytest.raises(ConfigError, match="n_heads"):
        load_model(own, load_format="mistral")
