"""Qwen4-Exp against transformers: rows whole, cut, together and divided over ranks, where a query
picks 3 of 15 pools, texts end within n-grams, and a rank has parts of their tables' shards; and
what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dovetail import LLM, SamplingParams
from dovetail.errors import ConfigError
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.media_verdicts import media_verdict
from support.row_pieces import pieces
from support.thread_ranks import divided_both_ways
from support.tiny_media import write_media_checkpoint
from support.verdicts import NATIVE, Verdict

NAME, WHOLE = "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"
END = 1
TOKENS = torch.randint(3, VOCAB_SIZE, (60,), generator=torch.Generator().manual_seed(2)).tolist()
for place in (6, 20, 22, 40):
    TOKENS[place] = END


def wanted(path: Path) -> torch.Tensor:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = theirs.eval()(input_ids=torch.tensor([TOKENS])).logits[0]
    return found


def test_rows_whole_cut_and_under_other_gates(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, output_gate_type=None, ngram_size=4)
    theirs = wanted(path)
    for backend in ("native_cpu", "torch_sdpa"):
        model = PagedModel.load(path, backend=backend)
        parts = zip(pieces(model, TOKENS), (theirs[7:], theirs, theirs[32:50]), strict=True)
        assert all((own - there).abs().max() < 1e-4 for own, there in parts)


def with_whole_tables(path: Path) -> None:
    """Join a checkpoint's shards, leave out what follows from its config, and add a layer that
    drafts. Mutates: the file"""
    tensors = load_file(path / "model.safetensors")
    tables: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors):
        if ".shard_" in name:
            tables.setdefault(name.partition("shard_")[0], []).append(tensors.pop(name))
    joined = {f"{name}weight": torch.cat(parts) for name, parts in tables.items()}
    kept = {name: x for name, x in tensors.items() if x.is_floating_point()}
    drafting = {"mtp.fc.weight": torch.zeros(2)}
    save_file(kept | joined | drafting, path / "model.safetensors", metadata={"format": "pt"})


def test_ranks_stages_and_whole_tables_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two: dict[str, Any] = {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "linear_attention"],
        "ple_layer_ids": [2],
    }
    path = write_tiny_checkpoint(tmp_path, NAME, **two)
    theirs = wanted(path)
    for model in divided_both_ways(path, monkeypatch):
        found = [model.forward([(0, TOKENS[a:b])])[0] for a, b in ((0, 40), (40, 41), (41, 60))]
        assert (torch.cat(found) - theirs).abs().max() < 1e-4
    with_whole_tables(path)
    (found_whole,) = PagedModel.load(path).forward([(0, TOKENS)])
    assert (found_whole - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("flags", [{}, {"max_num_batched_tokens": 20}], ids=["whole", "pieces"])
def test_images_before_pools_and_ngrams(flags: dict[str, int], tmp_path: Path) -> None:
    path = write_media_checkpoint(tmp_path, WHOLE)
    assert media_verdict(path, **flags) == Verdict(state=NATIVE)


def test_the_text_part_alone(tmp_path: Path) -> None:
    path = write_media_checkpoint(tmp_path, WHOLE)
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        ids = torch.tensor([TOKENS])
        drawn = theirs.eval().generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=-1)
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    flags: dict[str, Any] = {"max_model_len": 96, "use_tqdm_on_load": False}
    with LLM(str(path), language_model_only=True, **flags) as llm:
        (found,) = llm.generate([TOKENS], params, use_tqdm=False)
    assert [*found.outputs[0].token_ids] == drawn[0, len(TOKENS) :].tolist()


def test_quantized_and_invented_weights(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    flags: dict[str, Any] = {"max_model_len": 96, "use_tqdm_on_load": False}
    answers = []
    for own in ({}, {"quantization": "int8"}, {"load_format": "dummy"}):
        with LLM(str(path), **own, **flags) as llm:
            answers.append(llm.generate([TOKENS], params, use_tqdm=False)[0].outputs[0])
    assert [len(one.token_ids) for one in answers] == [4, 4, 4]
    assert answers[0].token_ids[0] == answers[1].token_ids[0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"ple_layer_ids": [2]}, "only in layers of linear attention"),
        ({"eos_token_id": None}, "there is no token for it"),
        ({"indexer_budget": None}, "indexer_budget must say how"),
        ({"output_gate_type": "gelu"}, 'no output gate "gelu"'),
        ({"ngram_size": 8}, "longer than the kernels' 7"),
    ],
)
def test_other_settings_are_refused(fields: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(ConfigError, match=why):
        load_model(path)
