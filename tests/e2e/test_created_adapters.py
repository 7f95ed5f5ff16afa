"""A model that /api/create makes of a base and an adapter answers as PEFT computes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from support.any_models import demo_gguf, digest_of
from support.gguf_adapters import write_gguf_adapter
from support.server_process import ServerProcess

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.e2e
PROMPTS = [[5 + (11 * i + n) % 900 for i in range(9 + n)] for n in range(3)]
NUM = 12
DIGITS = {"peft": ("adapter_config.json", "adapter_model.safetensors"), "gguf": ("tuned.gguf",)}


@dataclass(frozen=True)
class Place:
    """A server of any models, an adapter's folder, and what transformers and PEFT answer."""

    client: httpx.Client
    adapter: Path
    plain: list[list[int]]
    tuned: list[list[int]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    import torch

    from support.peft_adapters import made, wanted

    folder = tmp_path_factory.mktemp("adapters")
    base = transformers.AutoModelForCausalLM.from_pretrained(DEMO_PATH, dtype=torch.float32)
    modules = ["q_proj", "v_proj", "o_proj", "down_proj"]
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=modules)
    tuned = made(base, config, folder / "tuned", seed=3)
    write_gguf_adapter(DEMO_PATH, folder / "tuned", folder / "tuned" / "tuned.gguf")
    (folder / "models").mkdir()
    (folder / "models" / "demo").symlink_to(DEMO_PATH)
    (folder / "models" / "demo.gguf").write_bytes(demo_gguf(folder / "made"))
    answers = [[wanted(one, ids, NUM).token_ids for ids in PROMPTS] for one in (base, tuned)]
    env = {"XDG_DATA_HOME": str(folder / "data"), "HF_HUB_CACHE": str(folder / "hub")}
    env |= {"HOME": str(folder / "home"), "OLLAMA_MODELS": str(folder / "ollama")}
    flags = ("--models", "any", "--model-dir", str(folder / "models"), "--dtype", "float32")
    sizes = ("--kv-cache-memory-bytes", "8M")
    with ServerProcess("--port", "0", *flags, *sizes, env=env) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.url, timeout=120) as client:
            yield Place(client, folder / "tuned", *answers)


def create(place: Place, name: str, base: str, files: tuple[str, ...]) -> None:
    digests = {}
    for file in files:
        content = (place.adapter / file).read_bytes()
        digests[file] = digest_of(content)
        sent = place.client.post(f"/api/blobs/{digests[file]}", content=content)
        assert sent.status_code in (200, 201), sent.text
    body = {"model": name, "from": base, "adapters": digests, "stream": False}
    answer = place.client.post("/api/create", json=body)
    assert answer.json() == {"status": "success"}, answer.text


def answers(place: Place, model: str) -> list[list[int]]:
    found = []
    for prompt in PROMPTS:
        body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": NUM}
        extra = {"ignore_eos": True, "return_token_ids": True}
        answer = place.client.post("/v1/completions", json=body | extra)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["choices"][0]["token_ids"])
    return found


@pytest.mark.parametrize("base", ["demo", "demo.gguf"])
@pytest.mark.parametrize("kind", ["peft", "gguf"])
def test_a_created_model_with_an_adapter_answers_as_peft(
    place: Place, base: str, kind: str
) -> None:
    assert place.plain != place.tuned
    name = f"{kind}-over-{base}"
    create(place, name, base, DIGITS[kind])
    tags: Any = place.client.get("/api/tags").json()["models"]
    assert f"{name}:latest" in {row["name"] for row in tags}
    assert answers(place, name) == place.tuned
    assert answers(place, base) == place.plain
    chat = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    said = place.client.post("/api/chat", json=chat | {"options": {"num_predict": 4}})
    assert said.status_code == 200 and said.json()["model"] == name
    deleted = place.client.request("DELETE", "/api/delete", json={"model": name})
    assert deleted.status_code == 200, deleted.text
