"""GGUF models with a projector (mmproj) against transformers' models of the same weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import LLM, SamplingParams
from dovetail.config.config import Config
from dovetail.errors import DovetailError
from dovetail.interfaces.load_format import Checkpoint
from dovetail.multimodal.processors import load_processor
from dovetail_plugins.inspect.collect import inspect
from dovetail_plugins.load_formats.gguf import Gguf
from support.gguf_projectors import write_pair, write_projector
from support.inside import runner_of
from support.tiny_media import SOUND_FAMILIES, STATE_FAMILIES, write_media_checkpoint

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


def kinds_of(family: str) -> list[str]:
    """Return the kinds of media that a family's projector reads."""
    if family == "Gemma4ForConditionalGeneration":
        return ["image", "audio"]
    return ["audio" if family in SOUND_FAMILIES else "image"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("family", "kind"), [(family, kind) for family in FAMILIES for kind in kinds_of(family)]
)
def test_a_projector_gives_the_logits_of_the_checkpoint(
    family: str, kind: str, tmp_path: Path
) -> None:
    folder = write_media_checkpoint(tmp_path / "checkpoint", family)
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
