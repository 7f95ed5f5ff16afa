"""GGUF models with a projector (mmproj) against transformers' models of the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.checkpoint.formats import read_settings
from dovetail.config.config import Config
from dovetail.errors import DovetailError
from dovetail.interfaces.load_format import Checkpoint
from dovetail.multimodal.processors import load_processor
from dovetail_plugins.inspect.collect import inspect
from dovetail_plugins.load_formats.gguf import Gguf
from support.gguf_projectors import write_pair, write_projector
from support.inside import runner_of
from support.tiny_media import SOUND_FAMILIES, STATE_FAMILIES, write_media_checkpoint
from support.tiny_wholes import HAS_TORCHVISION, write_whole

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")
FAMILIES = [
    "Gemma3ForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "LargeGemma4ForConditionalGeneration",
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
    *STATE_FAMILIES,
    *SOUND_FAMILIES,
]
WHOLES = {
    "Glm4vForConditionalGeneration": "glm4v",
    "PaddleOCRVLForConditionalGeneration": "paddleocr_vl",
    "Kimi_K25ForConditionalGeneration": "kimi_k25",
    "GlmAsrForConditionalGeneration": "glmasr",
    "AudioFlamingo3ForConditionalGeneration": "audioflamingo3",
    "Glm4vMoeForConditionalGeneration": "glm4v_moe",
    "GlmOcrForConditionalGeneration": "glm_ocr",
    "JanusForConditionalGeneration": "janus",
    "LightOnOcrForConditionalGeneration": "lighton_ocr",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
}
"""Families whose small checkpoints have the processor's own settings -> model type."""
WITH_TORCHVISION = ("lfm2_vl", "kimi_k25")
"""Types whose pictures only torchvision prepares."""
WORST = 1e-4
ROUNDED = 0.1
"""Of products with activations in eight bits."""
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


def transformers_model(folder: Path) -> Any:
    """Return transformers' model of a checkpoint, in float32."""
    import transformers

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    made = getattr(transformers, config["architectures"][0])
    return made.from_pretrained(folder, dtype=torch.float32).eval()


def expected(folder: Path, text: str, kind: str, count: int) -> tuple[list[int], torch.Tensor]:
    """Return transformers' greedy tokens and the log-probabilities of each step."""
    processor, model = load_processor(folder, ""), transformers_model(folder)
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


def kinds_of(family: str) -> list[str]:
    """Return the kinds of media that a family's projector reads."""
    if family == "Gemma4ForConditionalGeneration":
        return ["image", "audio"]
    hears = (*SOUND_FAMILIES, "AudioFlamingo3ForConditionalGeneration",
             "GlmAsrForConditionalGeneration")  # fmt: skip
    return ["audio" if family in hears else "image"]


def written(folder: Path, family: str) -> Path:
    """Write a random checkpoint of a family; return the folder."""
    if family in WHOLES:
        return write_whole(folder, WHOLES[family], family)
    return write_media_checkpoint(folder, family)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in (*FAMILIES, *WHOLES) for kind in kinds_of(family)],
)
def test_a_projector_gives_the_logits_of_the_checkpoint(
    family: str, kind: str, tmp_path: Path
) -> None:
    if WHOLES.get(family) in WITH_TORCHVISION and not HAS_TORCHVISION:
        pytest.skip("torchvision is not installed")
    folder = written(tmp_path / "checkpoint", family)
    write_pair(folder, tmp_path / "model-F32.gguf", tmp_path / "mmproj-F32.gguf")
    if "Gemma4" in family:  # files do not say how many vectors an image may have
        (tmp_path / "preprocessor_config.json").write_text('{"max_soft_tokens": 70}')
    place = getattr(load_processor(folder, ""), f"{kind}_token")
    text = f"look {place} what is it?"
    tokens, right = expected(folder, text, kind, 6)
    with LLM(str(tmp_path / "model-F32.gguf"), **FLAGS) as llm:
        got, rows = answered(llm, text, kind, 6)
    assert got == tokens
    assert (rows - right).abs().max() < WORST


@pytest.mark.parametrize(
    "family", [family for family in WHOLES if WHOLES[family] in WITH_TORCHVISION]
)
def test_an_encoder_is_read_back_where_nothing_prepares_its_pictures(
    family: str, tmp_path: Path
) -> None:
    """Without torchvision: config and weights are those of the checkpoint."""
    folder = write_whole(tmp_path / "checkpoint", WHOLES[family], family, is_bare=True)
    settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "max_patches": 16384}
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    files = (tmp_path / "model.gguf", tmp_path / "mmproj.gguf")
    write_pair(folder, *files)
    right = transformers_model(folder)
    config, wanted = read_settings(files[0]), right.config.to_dict()
    for part in (config, config["vision_config"]):
        known = wanted if part is config else wanted["vision_config"]
        same = set(known) & set(part) - {"text_config", "vision_config", "image_size", "dtype"}
        assert {name: part[name] for name in same} == {name: known[name] for name in same}
    weights = right.state_dict()
    own = {n for n in weights if not n.startswith(("model.language_model.", "lm_head."))}
    read = Gguf(Gguf.Options()).tensors(Checkpoint(path=str(files[0])))
    found = {name: tensor.clone() for name, tensor in read if name in own}
    assert set(found) == own
    assert all(torch.equal(found[name].view(weights[name].shape), weights[name]) for name in own)


@pytest.mark.parametrize(
    ("family", "old", "place"),
    [
        ("Gemma3ForConditionalGeneration", "<image_soft_token>", "<start_of_image>"),
        ("LlavaForConditionalGeneration", "<image>", "<unused7>"),
    ],
)
def test_an_unused_token_marks_places_if_the_vocabulary_lacks_theirs(
    family: str, old: str, place: str, tmp_path: Path
) -> None:
    """Converters leave out tokens of Gemma 3 beyond the vocabulary; Vicuna's never had one."""
    folder = write_media_checkpoint(tmp_path / "checkpoint", family)
    files = (tmp_path / "model-F32.gguf", tmp_path / "mmproj-F32.gguf")
    write_pair(folder, *files, words={old: "<unused7>"})
    there = load_processor(folder, "").image_token
    tokens, right = expected(folder, f"look {there} what is it?", "image", 3)
    with LLM(str(files[0]), **FLAGS) as llm:
        got, rows = answered(llm, f"look {place} what is it?", "image", 3)
    assert got == tokens
    assert (rows - right).abs().max() < WORST


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("type_name", ["F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize(
    "family", ["Qwen2_5_VLForConditionalGeneration", "Gemma3ForConditionalGeneration"]
)
def test_rounded_projectors_are_read_as_they_are(
    family: str, type_name: str, tmp_path: Path
) -> None:
    """Every tensor is what the gguf package makes of its blocks."""
    folder = write_media_checkpoint(tmp_path / "checkpoint", family)
    files = (tmp_path / "model.gguf", tmp_path / "mmproj-F32.gguf")
    write_pair(folder, *files)
    found = []
    for rounds in (False, True):
        write_projector(folder, files[1], lambda name: type_name, rounds=rounds)
        tensors = Gguf(Gguf.Options()).tensors(Checkpoint(path=str(files[0])))
        found.append({n: t.float().clone() for n, t in tensors if "vis" in n or "multi" in n})
    packed, rounded = found
    assert packed.keys() == rounded.keys()
    assert all(torch.equal(packed[name], rounded[name]) for name in packed)


def test_a_quantized_model_and_half_a_projector(tmp_path: Path) -> None:
    """The text model's types do not touch the encoder, whose matrices stay float16."""
    folder = write_media_checkpoint(tmp_path / "checkpoint", "Qwen2_5_VLForConditionalGeneration")
    files = (tmp_path / "model-Q8_0.gguf", tmp_path / "mmproj-F16.gguf")
    write_pair(folder, *files, text_type=lambda name: "Q8_0", type_of=lambda name: "F16")
    place = load_processor(folder, "").image_token
    rows, sizes = [], []
    for rounds in (False, True):
        write_projector(folder, files[1], lambda name: "F16", rounds=rounds)
        with LLM(str(files[0]), **FLAGS) as llm:
            rows.append(answered(llm, f"look {place} now", "image", 3)[1])
            encoder: Any = runner_of(llm).model.encoder  # type: ignore[attr-defined]
            sizes.append(sum(t.nbytes for t in (*encoder.parameters(), *encoder.buffers())))
    assert sizes[0] < 0.7 * sizes[1]
    assert (rows[0] - rows[1]).abs().max() < WORST


def test_a_quantized_text_model_that_runs_over_transformers(tmp_path: Path) -> None:
    """Its matrices stay quantized, its token table and head are plain numbers."""
    family, rows, sizes = "Glm4vForConditionalGeneration", [], []
    folder = written(tmp_path / "checkpoint", family)
    place = load_processor(folder, "").image_token
    for rounds in (False, True):
        (tmp_path / str(rounds)).mkdir()
        files = [tmp_path / str(rounds) / name for name in ("model.gguf", "mmproj.gguf")]
        write_pair(folder, files[0], files[1], text_type=lambda name: "Q8_0", rounds=rounds)
        with LLM(str(files[0]), **FLAGS) as llm:
            rows.append(answered(llm, f"look {place} now", "image", 1)[1])
            trunk: Any = runner_of(llm).model.trunk.layers  # type: ignore[attr-defined]
            sizes.append(sum(t.nbytes for t in (*trunk.parameters(), *trunk.buffers())))
    assert sizes[0] < 0.7 * sizes[1]
    assert (rows[0] - rows[1]).abs().max() < ROUNDED


def test_the_text_model_of_glm_4v_alone(tmp_path: Path) -> None:
    """Its heads are in another order than those of GLM-4's files."""
    folder = written(tmp_path / "checkpoint", "Glm4vForConditionalGeneration")
    write_pair(folder, tmp_path / "model.gguf", tmp_path / "mmproj.gguf")
    ids = list(range(40, 70))
    model = transformers_model(folder)
    with torch.inference_mode():
        right = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, logprobs=-1)
    with LLM(str(tmp_path / "model.gguf"), mmproj="", **FLAGS) as llm:
        (result,) = llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
    (entry,) = result.outputs[0].logprobs or ()
    row = torch.empty(len(entry.top_ids))
    row[list(entry.top_ids)] = torch.tensor(entry.top_logprobs)
    assert (row - right).abs().max() < WORST


def test_a_named_projector_is_used_and_shown(tmp_path: Path) -> None:
    """It may be in another folder; "" leaves out the one that is next to the model."""
    family = "Qwen2_5_VLForConditionalGeneration"
    folder = write_media_checkpoint(tmp_path / "checkpoint", family)
    text, elsewhere = tmp_path / "model.gguf", tmp_path / "other" / "vectors.gguf"
    elsewhere.parent.mkdir()
    write_pair(folder, text, elsewhere)
    prompt = f"look {load_processor(folder, '').image_token} now"
    tokens, _ = expected(folder, prompt, "image", 3)
    with LLM(str(text), mmproj=str(elsewhere), **FLAGS) as llm:
        assert answered(llm, prompt, "image", 3)[0] == tokens
    shown = inspect(Config().with_fields({"model": str(text), "mmproj": str(elsewhere)}, origin=""))
    assert str(elsewhere) in {file.name for file in shown.files}
    assert shown.would_start
    shutil.copy(elsewhere, tmp_path / "mmproj.gguf")
    with LLM(str(text), mmproj="", **FLAGS) as llm, pytest.raises(DovetailError):
        answered(llm, prompt, "image", 3)
