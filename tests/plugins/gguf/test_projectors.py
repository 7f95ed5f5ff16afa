"""GGUF models with a projector (mmproj) against transformers' models of the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.multimodal.processors import load_processor
from support.gguf_projectors import write_pair
from support.tiny_media import SOUND_FAMILIES, write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
FAMILIES = [
    "Gemma3ForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "PixtralForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    *SOUND_FAMILIES,
]
WORST = 1e-4
FLAGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 400,
    "max_logprobs": -1,
    "use_tqdm_on_load": False,
    "num_gpu_blocks_override": 60,
    "block_size": 16,
}


def medium(kind: str) -> Any:
    rng = np.random.default_rng(7)
    if kind == "audio":
        return rng.standard_normal(9000).astype(np.float32) / 10
    return PIL.fromarray(rng.integers(0, 255, (40, 50, 3), dtype=np.uint8))


def expected(folder: Path, text: str, kind: str, count: int) -> tuple[list[int], torch.Tensor]:
    """Return transformers' greedy tokens and the log-probabilities of each step."""
    import transformers

    processor = load_processor(folder, "")
    auto = (
        transformers.AutoModelForImageTextToText
        if kind == "image"
        else transformers.AutoModelForMultimodalLM
    )
    model = auto.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    argument = {"image": "images", "audio": "audio"}[kind]
    more = {"sampling_rate": 16000} if kind == "audio" else {}
    inputs = processor(text=[text], **{argument: [medium(kind)]}, return_tensors="pt", **more)
    inputs = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    drawn = model.generate(
        **inputs,
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = drawn.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return tokens, torch.cat(drawn.logits).log_softmax(-1)


def answered(llm: LLM, text: str, kind: str, count: int) -> tuple[list[int], torch.Tensor]:
    """Return the greedy tokens of a model and the log-probabilities of each step."""
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, logprobs=-1)
    prompt = {"prompt": text, "multi_modal_data": {kind: medium(kind)}}
    (result,) = llm.generate([prompt], params, use_tqdm=False)
    (answer,) = result.outputs
    rows = []
    for entry in answer.logprobs or ():
        row = torch.empty(len(entry.top_ids))
        row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
        rows.append(row)
    return list(answer.token_ids), torch.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_projector_gives_the_logits_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    folder = write_media_checkpoint(tmp_path / "checkpoint", family)
    write_pair(folder, tmp_path / "model-F32.gguf", tmp_path / "mmproj-F32.gguf")
    kind = "audio" if family in SOUND_FAMILIES else "image"
    place = getattr(load_processor(folder, ""), f"{kind}_token")
    text = f"look {place} what is it?"
    tokens, right = expected(folder, text, kind, 6)
    with LLM(str(tmp_path / "model-F32.gguf"), **FLAGS) as llm:
        got, rows = answered(llm, text, kind, 6)
    assert got == tokens
    assert (rows - right).abs().max() < WORST
