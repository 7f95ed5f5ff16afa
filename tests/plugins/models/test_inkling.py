"""Inkling against transformers: rows whole, cut, together and divided over ranks, longer than
windows, biases and the floor of the queries' factor; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.row_pieces import pieces
from support.thread_ranks import divided_both_ways

TWO_LAYERS: dict[str, dict[str, Any]] = {
    "InklingForCausalLM": {
        "num_hidden_layers": 2,
        "layer_types": ["hybrid_sliding", "hybrid"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "Inkling2ForCausalLM": {
        "num_hidden_layers": 2,
        "layer_types": ["hybrid_sliding", "hybrid"],
        "n_layers_per_attn_res_block": 1,
    },
    "Inkling2LoopForCausalLM": {
        "num_hidden_layers": 2,
        "layer_types": ["hybrid_sliding", "hybrid"],
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
        "loop_num_passes": 2,
    },
}
NAMES = tuple(TWO_LAYERS)
TOKENS = torch.randint(
    3, VOCAB_SIZE - 4, (60,), generator=torch.Generator().manual_seed(2)
).tolist()


def wanted(path: Path) -> torch.Tensor:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = theirs.eval()(input_ids=torch.tensor([TOKENS])).logits[0]
    return found


def is_near(found: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Return whether logits are transformers', and ids that pad the head are never drawn."""
    known = theirs.shape[1]
    padding = found[:, known:]
    return bool((found[:, :known] - theirs).abs().max() < 1e-4 and (padding == -torch.inf).all())


@pytest.mark.parametrize("name", NAMES)
def test_rows_whole_and_cut(name: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, name, unpadded_vocab_size=VOCAB_SIZE - 4)
    theirs = wanted(path)
    assert theirs.shape[1] == VOCAB_SIZE - 4 and theirs.std() > 0.1
    for backend in ("native_cpu", "torch_sdpa"):
        model = PagedModel.load(path, backend=backend)
        parts = zip(pieces(model, TOKENS), (theirs[7:], theirs, theirs[32:50]), strict=True)
        assert all(is_near(own, there) for own, there in parts)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_stages_change_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_checkpoint(tmp_path, name, **TWO_LAYERS[name])
    theirs = wanted(path)
    for model in divided_both_ways(path, monkeypatch)[: 1 if "Loop" in name else 2]:
        found = [model.forward([(0, TOKENS[a:b])])[0] for a, b in ((0, 40), (40, 41), (41, 60))]
        assert is_near(torch.cat(found), theirs)


@pytest.mark.parametrize("name", NAMES)
def test_quantized_and_invented_weights(name: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, name, **TWO_LAYERS[name])
    theirs = wanted(path).log_softmax(dim=-1)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=1)
    flags: dict[str, Any] = {"max_model_len": 96, "use_tqdm_on_load": False}
    found = []
    for own in ({}, {"quantization": "int8"}, {"load_format": "dummy"}):
        with LLM(str(path), **own, **flags) as llm:
            (answer,) = llm.generate([TOKENS], params, use_tqdm=False)
        assert len(answer.outputs[0].token_ids) == 4
        assert answer.prompt_logprobs is not None
        rows = zip(theirs, answer.prompt_logprobs[1:], TOKENS[1:], strict=False)
        apart = [abs(row[id_].logprob - float(their[id_])) for their, row, id_ in rows if row]
        found.append(sum(apart) / len(apart))
    exact, rounded, invented = found
    assert exact < 1e-5 < rounded < 0.3 < invented


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        (
            "InklingForCausalLM",
            {"layer_types": ["hybrid", "chunked", "hybrid"]},
            "of the kind chunked",
        ),
        ("Inkling2ForCausalLM", {"scoring_func": "softmax"}, 'experts are scored by "softmax"'),
        ("Inkling2ForCausalLM", {"hidden_act": "gelu"}, 'activation "gelu" is not supported'),
        ("Inkling2LoopForCausalLM", {"loop_layer_index_end": 5}, "are not whole blocks of 2"),
    ],
)
def test_other_settings_are_refused(
    name: str, fields: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = write_tiny_checkpoint(tmp_path, name)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ConfigError, match=why):
        load_model(path)
