"""Vectors of conversations with images by a decoder: those of transformers' last hidden state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from dovetail import LLM
from dovetail.multimodal.processors import load_processor
from support.server_process import ServerProcess
from support.tiny_dual_encoders import data_url, part, picture
from support.tiny_media import write_media_checkpoint

pytestmark = pytest.mark.e2e
TYPES = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
}


def vector_of(folder: Path, model_type: str, text: str, image: Any) -> np.ndarray:
    """Return transformers' vector of a prompt: its last token's state, of length 1."""
    import transformers

    features = load_processor(folder, model_type)(text=[text], images=[image], return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        state = model(**features).last_hidden_state[0, -1]
    return (state / state.norm()).numpy()


@pytest.mark.parametrize("architecture", TYPES)
def test_vectors_equal_transformers(architecture: str, tmp_path: Path) -> None:
    folder = write_media_checkpoint(tmp_path / "model", architecture)
    images = [picture(61, 33, seed=1), picture(20, 90, seed=2)]
    text = "read this: <|image_pad|> now"
    prompts = [{"prompt": text, "multi_modal_data": {"image": one}} for one in images]
    with LLM(model=str(folder), dtype="float32", runner="pooling", max_model_len=256) as llm:
        found = llm.embed([prompts[0], "text alone", prompts[1]], use_tqdm=False)
    for image, result in zip(images, found[::2], strict=True):
        expected = vector_of(folder, TYPES[architecture], text, image)
        np.testing.assert_allclose(result.outputs.embedding, expected, atol=1e-4)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    folder = tmp_path_factory.mktemp("vl") / "model"
    write_media_checkpoint(folder, "Qwen2VLForConditionalGeneration")
    flags = ("--runner", "pooling", "--served-model-name", "vl", "--max-model-len", "256")
    with (
        ServerProcess(str(folder), "--port", "0", "--dtype", "float32", *flags) as server,
        server.wait_ready().client() as client,
    ):
        yield client, folder


def test_messages_and_parts_are_read_through_the_template(
    served: tuple[httpx.Client, Path],
) -> None:
    client, folder = served
    image = picture(61, 33, seed=1)
    expected = vector_of(folder, "qwen2_vl", "user: <|image_pad|>", image)
    messages = [{"role": "user", "content": [part(image)]}]
    for body in ({"messages": messages}, {"input": [{"image": data_url(image)}]}):
        answer = client.post("/v1/embeddings", json={"model": "vl", **body})
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["data"][0]["embedding"], expected, atol=1e-4)
    sides = {"text_1": "a text", "text_2": [{"image": data_url(image)}, "a text"]}
    scores = client.post("/score", json={"model": "vl", **sides}).json()["data"]
    assert scores[1]["score"] == pytest.approx(1.0, abs=1e-5)
    assert -1 <= scores[0]["score"] < 1 - 1e-4
