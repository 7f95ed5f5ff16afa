"""Models that see with quantized weights: their encoder's matrices too, as those that are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.multimodal.processors import load_processor
from dovetail_kernels.gemm.weight import quantize_int8
from support.inside import runner_of
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=-1)
WORST = 1e-3
"""Logprobs; float activations on both sides, so that only sums are rounded."""


def dequantized(path: Path) -> Any:
    """Return transformers' model whose matrices are what int8 makes of them."""
    import transformers

    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(quantize_int8(module.weight).dequantize())
    return model


@pytest.mark.parametrize(
    ("family", "matrix"),
    [
        ("LlavaForConditionalGeneration", "encoder.vision_tower.encoder.layers.0.mlp.fc1"),
        ("Qwen2VLForConditionalGeneration", "encoder.visual.blocks.0.mlp.fc1"),
    ],
)
def test_int8_is_what_its_matrices_mean(family: str, matrix: str, tmp_path: Path) -> None:
    path = write_media_checkpoint(tmp_path, family)
    pixels = np.random.default_rng(4).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    picture, processor = PIL.fromarray(pixels), load_processor(path, "")
    text = f"look {processor.image_token} what is it?"
    reference = dequantized(path)
    inputs = processor(text=[text], images=[picture], return_tensors="pt")
    drawn = reference.generate(
        **inputs,
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    wanted = torch.cat(drawn.logits).log_softmax(-1)
    flags: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "max_logprobs": -1}
    options = {"quantization": {"activations": "float"}}
    with LLM(str(path), quantization="int8", plugin_options=options, **flags) as llm:
        prompt = {"prompt": text, "multi_modal_data": {"image": picture}}
        (told,) = llm.generate([prompt], PARAMS, use_tqdm=False)
        module = runner_of(llm).model.get_submodule(matrix)
        held = [*module.parameters(), *module.buffers()]
    assert torch.uint8 in {one.dtype for one in held}  # packed
    (answer,) = told.outputs
    assert list(answer.token_ids) == drawn.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    for row, entry in zip(wanted, answer.logprobs or (), strict=True):
        found = torch.empty(len(row))
        found[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
        assert (found - row).abs().max() < WORST
