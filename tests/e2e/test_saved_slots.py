"""Prompts of llama.cpp's slots that are saved by one server are found by the next."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
PROMPT = [3 + (7 * i + i // 9) % 60 for i in range(150)]
ASKED = {"prompt": PROMPT, "n_predict": 20, "temperature": 0, "ignore_eos": True}


@contextmanager
def serving(
    folder: Path | None, *flags: str, connector: str = "shared_storage"
) -> Iterator[httpx.Client]:
    extra = {"kv_connector": connector, "kv_role": "kv_both"}
    if folder is not None:
        config = json.dumps({**extra, "kv_connector_extra_config": {"folder": str(folder)}})
        flags = ("--kv-transfer-config", config, *flags)
    sizes = ("--max-model-len", "512", "--max-num-seqs", "4")
    with (
        ServerProcess("--port", "0", *sizes, *flags) as server,
        server.wait_ready().client() as client,
    ):
        yield client


def change(client: httpx.Client, slot: int, action: str, name: str | None = "chat.bin") -> Any:
    return client.post(f"/slots/{slot}", params={"action": action}, json={"filename": name})


def done(client: httpx.Client, slot: int, action: str, name: str = "chat.bin") -> Any:
    answer = change(client, slot, action, name)
    assert answer.status_code == 200, answer.text
    return answer.json()


def completed(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/completion", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def wait_for_files(folder: Path, num: int) -> None:
    """Return once so many blocks are written."""
    deadline_s = time.monotonic() + 30
    while len(list(folder.rglob("??/*.0"))) < num:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize("connector", ["shared_storage", "offloading"])
def test_a_saved_prompt_is_restored_by_the_next_server(tmp_path: Path, connector: str) -> None:
    with serving(tmp_path, connector=connector) as client:
        first = completed(client, id_slot=2, return_tokens=True)
        assert first["id_slot"] == 2
        saved = done(client, 2, "save")
        assert saved["n_saved"] == len(PROMPT) + 20 and saved["timings"]["save_ms"] >= 0
        assert (tmp_path / "slots/chat.bin").stat().st_size == saved["n_written"]
        refused(change(client, 0, "save"), 400, "slot 0 has no prompt")
        wait_for_files(tmp_path, len(PROMPT) // 16)
    with serving(tmp_path, connector=connector) as client:
        restored = done(client, 1, "restore")
        assert (restored["id_slot"], restored["n_restored"]) == (1, saved["n_saved"])
        assert (restored["filename"], restored["n_read"]) == ("chat.bin", saved["n_written"])
        metrics = client.get("/metrics").text
        loaded = [line for line in metrics.splitlines() if "loaded_tokens_total" in line]
        assert float(loaded[-1].split()[-1]) >= 144, metrics  # from files, not computed
        longer = completed(client, prompt=[*PROMPT, *first["tokens"]], n_predict=1)
        assert longer["timings"]["cache_n"] >= 160
        assert completed(client)["content"] == first["content"]
        assert done(client, 1, "save", "again.bin")["n_saved"] == saved["n_saved"]
        refused(change(client, 0, "restore", "none.bin"), 400, "none.bin cannot be read")
        (tmp_path / "slots/torn.bin").write_bytes(b'{"identity":')
        refused(change(client, 0, "restore", "torn.bin"), 400, "torn.bin is not a saved prompt")
    with serving(tmp_path, "--dtype", "float32", connector=connector) as client:
        refused(change(client, 0, "restore"), 400, "another model or other flags")


def test_prompts_that_are_not_saved(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        for private in ({"cache_prompt": False}, {"cache_salt": "mine"}):
            completed(client)
            done(client, 0, "save")
            completed(client, **private)
            refused(change(client, 0, "save"), 400, "slot 0 has no prompt")
        completed(client, n_predict=0)
        assert done(client, 0, "save")["n_saved"] == len(PROMPT)
        for name in (None, "", "../up", "a/b", "/etc/x", ".hidden", "a\x00b", "x" * 300, "a\\b"):
            assert change(client, 0, "save", name).status_code == 400
        refused(change(client, 9, "save"), 400, "must be 0 to 3")
        refused(change(client, 0, "erase"), 501, "does not have its own cache")
    assert sorted(path.name for path in (tmp_path / "slots").iterdir()) == ["chat.bin"]


def test_a_server_without_files_says_what_to_do() -> None:
    with serving(None) as client:
        completed(client)
        refused(change(client, 0, "save"), 501, "--kv-transfer-config")
