"""CLIP, SigLIP and SigLIP 2: vectors of texts and images equal those of transformers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dovetail import LLM
from dovetail.errors import RequestError
from dovetail.multimodal.reader import MediaReader
from dovetail.pooling_params import PoolingParams
from support.media import png_of
from support.server_process import ServerProcess
from support.tiny_dual_encoders import (
    FAMILIES,
    LENGTHS,
    base64_png,
    data_url,
    part,
    picture,
    vector_of,
    write_dual_encoder,
)

pytestmark = pytest.mark.e2e
TEXTS = ["The cat", "a photo of the dog", "cat"]
SIZES = [(32, 32), (50, 33), (17, 91), (200, 40)]


@dataclass(frozen=True)
class Served:
    """A client of a server, and transformers' vector of a text or an image."""

    client: httpx.Client
    vector: Callable[[Any], np.ndarray]

    def vectors(self, path: str, body: dict[str, Any], field: str = "embedding") -> np.ndarray:
        """Return the vectors of an answer."""
        answer = self.client.post(path, json={"model": "clip", **body})
        assert answer.status_code == 200, answer.text
        return np.array([one[field] for one in answer.json()["data"]])


def shown(image: Any) -> dict[str, Any]:
    """Return the prompt of an image."""
    return {"prompt": "", "multi_modal_data": {"image": image}}


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_equal_transformers(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts and images of odd sizes in one batch, an image again, and a vector of any length."""
    model, processor = write_dual_encoder(tmp_path / "model", family)
    images = [picture(*size, seed=at) for at, size in enumerate(SIZES)]
    given = [TEXTS[0], images[0], images[1], TEXTS[1], images[2], TEXTS[2], images[3], images[0]]
    read = MediaReader._read
    num_read: list[int] = []

    def counted(*given: Any) -> Any:
        num_read.append(1)
        return read(*given)

    monkeypatch.setattr(MediaReader, "_read", counted)
    with LLM(model=str(tmp_path / "model"), dtype="float32") as llm:
        prompts = [one if isinstance(one, str) else shown(one) for one in given]
        results = llm.embed(prompts, use_tqdm=False)
        (long,) = llm.embed(
            [shown(images[1])], pooling_params=PoolingParams(is_normalized=False), use_tqdm=False
        )
        for prompt in ({**shown(images[0]), "prompt": "the cat"}, shown(images[:2])):
            with pytest.raises(RequestError, match="a text or one image, never both"):
                llm.embed([prompt], use_tqdm=False)
        with pytest.raises(RequestError, match="does not do token_embed"):
            llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)
    assert len(num_read) == len(images), "an image is read once, by its content"
    for one, result in zip(given, results, strict=True):
        expected = vector_of(model, processor, one, LENGTHS[family])
        np.testing.assert_allclose(result.outputs.embedding, expected, atol=1e-4)
    length = np.linalg.norm(long.outputs.embedding)
    assert abs(length - 1) > 1e-3
    expected = vector_of(model, processor, images[1], LENGTHS[family])
    np.testing.assert_allclose(np.array(long.outputs.embedding) / length, expected, atol=1e-4)
    assert len(results[1].prompt_token_ids) == 1


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("clip") / "model"
    model, processor = write_dual_encoder(folder, "clip")
    with (
        ServerProcess(
            str(folder), "--port", "0", "--dtype", "float32", "--served-model-name", "clip"
        ) as server,
        server.wait_ready().client() as client,
    ):
        yield Served(client, lambda given: vector_of(model, processor, given, LENGTHS["clip"]))


def test_images_by_every_door(served: Served) -> None:
    image, other = picture(50, 33, seed=1), picture(64, 40, seed=2)
    want, want_other, want_text = (served.vector(one) for one in (image, other, TEXTS[1]))
    parts = [{"image": base64_png(image)}, {"text": TEXTS[1]}, TEXTS[1], {"image": data_url(other)}]
    found = served.vectors("/v1/embeddings", {"input": parts})
    np.testing.assert_allclose(found, [want, want_text, want_text, want_other], atol=1e-4)
    alone = served.vectors("/v1/embeddings", {"input": {"image": data_url(other)}})
    np.testing.assert_allclose(alone, [want_other], atol=1e-4)
    for content, expected in (([part(image)], want), (TEXTS[1], want_text)):
        message = {"role": "user", "content": content}
        found = served.vectors("/v1/embeddings", {"messages": [message]})
        np.testing.assert_allclose(found, [expected], atol=1e-4)
    found = served.vectors("/pooling", {"input": parts[:2], "task": "embed"}, "data")
    np.testing.assert_allclose(found, [want, want_text], atol=1e-4)
    forms: list[dict[str, Any]] = [
        {"images": [data_url(image), data_url(other)]},
        {"inputs": [{"content": [part(image)]}, {"content": [part(other)]}]},
    ]
    for body in forms:
        body |= {"model": "clip", "input_type": "image", "embedding_types": ["float"]}
        answer = served.client.post("/v2/embed", json=body)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(
            answer.json()["embeddings"]["float"], [want, want_other], atol=1e-4
        )


def test_the_client_of_cohere(served: Served) -> None:
    cohere = pytest.importorskip("cohere", reason="cohere is not installed")
    images = [picture(50, 33, seed=1), picture(64, 40, seed=2)]
    url = str(served.client.base_url).rstrip("/")
    how = {"model": "clip", "input_type": "image", "embedding_types": ["float"]}
    want = [served.vector(one) for one in images]
    with httpx.Client(timeout=60.0) as http:
        client = cohere.ClientV2(api_key="none", base_url=url, httpx_client=http)
        by_images = client.embed(images=[data_url(one) for one in images], **how)
        by_inputs = client.embed(inputs=[{"content": [part(one)]} for one in images], **how)
    for found in (by_images, by_inputs):
        np.testing.assert_allclose(found.embeddings.float_, want, atol=1e-4)


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        ({"image": "file:///etc/passwd"}, "media_forbidden"),
        ({"image": "http://127.0.0.1/a.png"}, "media_forbidden"),
        ({"image": "aGVsbG8="}, "image"),
        ({"image": "%%%"}, "base64"),
        ({"image": base64.b64encode(png_of(60_000, 60_000)).decode()}, "pixels"),
        ({"image": "aGVsbG8=", "text": "the cat"}, "a text or an image"),
    ],
)
def test_what_is_no_image_ends_its_request_alone(
    served: Served, sent: dict[str, str], what: str
) -> None:
    answer = served.client.post("/v1/embeddings", json={"model": "clip", "input": ["cat", sent]})
    assert answer.status_code in (400, 422), answer.text
    assert what in answer.text
    assert "input" in answer.text
    served.vectors("/v1/embeddings", {"input": "cat"})


def test_one_prompt_is_a_text_or_one_image(served: Served) -> None:
    image = part(picture(8, 8))
    for content in ([image, {"type": "text", "text": "cat"}], [image, image]):
        body = {"model": "clip", "messages": [{"role": "user", "content": content}]}
        answer = served.client.post("/v1/embeddings", json=body)
        assert answer.status_code == 400
        assert "a text or one image, never both" in answer.text
        cohere = {"model": "clip", "input_type": "image", "inputs": [{"content": content}]}
        answer = served.client.post("/v2/embed", json=cohere)
        assert answer.status_code == 400
        assert "a text or one image, never both" in answer.text
