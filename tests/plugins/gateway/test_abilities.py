"""Capabilities of models that are not loaded equal those that their servers report."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail_plugins.created_models.store import CreatedStore, Record
from dovetail_plugins.gateway import abilities as abilities_module
from dovetail_plugins.modelfile.model import Modelfile
from support.any_models import any_rig, demo_gguf, own_stores
from support.demo_copies import demo_copy, with_file
from support.fake_models import Rig
from support.tiny_encoders import write_tiny_bert, write_word_tokenizer

THINKS = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}<think>\n"
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_stores(tmp_path, monkeypatch)
    monkeypatch.setattr(abilities_module, "BUDGET_S", 600.0)
    made = tmp_path / "models"
    made.mkdir()
    return made


def rig_of(folder: Path) -> Rig:
    return any_rig(config={"model_dir": [str(folder)]})


def listed(rig: Rig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the capabilities in Ollama's and in OpenAI's list, by name."""

    async def main() -> Any:
        async with rig.client() as client:
            tags = (await client.get("/api/tags")).json()["models"]
            cards = (await client.get("/v1/models")).json()["data"]
            return (
                {row["name"]: row.get("capabilities") for row in tags},
                {row["id"]: row.get("capabilities") for row in cards},
            )

    found: tuple[dict[str, Any], dict[str, Any]] = asyncio.run(main())
    return found


def shown(rig: Rig, name: str) -> Any:
    async def main() -> Any:
        async with rig.client() as client:
            answer = await client.post("/api/show", json={"model": name})
            assert answer.status_code == 200, answer.text
            return answer.json()["capabilities"]

    return asyncio.run(main())


def copied(folder: Path, name: str, **files: str) -> Path:
    """Copy the demo model, with other contents of files ("__" for the dot)."""
    (folder / "copies").mkdir(exist_ok=True)
    made = Path(demo_copy(folder / "copies"))
    for file, text in files.items():
        with_file(str(made), file.replace("__", "."), text)
    made.rename(folder / name)
    (folder / "copies").rmdir()
    return folder / name


def with_tokens(texts: tuple[str, ...]) -> str:
    data = json.loads((DEMO_PATH / "tokenizer.json").read_text())
    data["added_tokens"] += [
        {"id": 100_000 + n, "content": text, "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for n, text in enumerate(texts)
    ]  # fmt: skip
    return json.dumps(data)


def test_what_the_files_show(folder: Path) -> None:
    copied(folder, "demo")
    copied(folder, "thinking", chat_template__jinja=THINKS)
    copied(folder, "code", tokenizer__json=with_tokens(FIM))
    copied(folder, "half", tokenizer__json=with_tokens(FIM[:2]))
    write_tiny_bert(write_word_tokenizer(folder / "encoder"))
    ollama, openai = listed(rig_of(folder))
    assert ollama["demo"] == ["completion", "tools", "thinking"]
    assert openai["demo"] == ["completion", "chat", "tools", "reasoning", "structured_output"]
    assert ollama["thinking"] == ["completion", "thinking"]
    assert openai["thinking"] == ["completion", "chat", "reasoning", "structured_output"]
    assert ollama["code"] == ["completion", "tools", "thinking", "insert"]
    assert ollama["half"] == ollama["demo"]
    assert ollama["encoder"] == ["embedding"] and "embed" in openai["encoder"]
    for name, words in ollama.items():
        assert shown(rig_of(folder), name) == words


def test_a_gguf_file(folder: Path) -> None:
    (folder / "demo.gguf").write_bytes(demo_gguf(folder.parent / "made"))
    (name,) = listed(rig_of(folder))[0]
    assert listed(rig_of(folder))[0][name][0] == "completion"


def test_files_that_change_are_read_again_and_others_are_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(folder, "demo")
    reads: list[Any] = []
    usual = abilities_module.known_capabilities
    monkeypatch.setattr(
        abilities_module,
        "known_capabilities",
        lambda config, spec: reads.append(spec.run.model.path) or usual(config, spec),
    )
    rig = rig_of(folder)
    assert "tools" in listed(rig)[0]["demo"] and "tools" in listed(rig)[1]["demo"]
    assert reads == [str(path)]
    with_file(str(path), "chat_template.jinja", "{{ messages }}")
    assert listed(rig)[0]["demo"] == ["completion"]
    assert len(reads) == 2


def test_a_created_model_has_its_own_template(folder: Path) -> None:
    copied(folder, "demo")
    created, rig = CreatedStore(), rig_of(folder)
    created.put("plain:latest", Record(modelfile=Modelfile(base="demo", template="{{ .Prompt }}")))
    assert listed(rig)[0]["plain:latest"] == ["completion"]
    created.put("plain:latest", Record(modelfile=Modelfile(base="demo")))
    assert listed(rig)[0]["plain:latest"] == ["completion", "tools", "thinking"]


def test_a_list_waits_only_for_so_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        copied(folder, f"demo{number}")
    times = iter(range(1000))
    clock = SimpleNamespace(monotonic=lambda: float(next(times)))
    monkeypatch.setattr(abilities_module, "time", clock)
    monkeypatch.setattr(abilities_module, "BUDGET_S", 2.0)
    rig, known = rig_of(folder), []
    for _ in range(3):
        known += [sum(words is not None for words in one.values()) for one in listed(rig)]
    assert known == sorted(known) and known[0] < known[-1] == 3


def test_a_model_that_cannot_be_read_has_none(folder: Path) -> None:
    copied(folder, "broken", chat_template__jinja="{% if %}")
    ollama, openai = listed(rig_of(folder))
    assert ollama == openai == {"broken": None}
