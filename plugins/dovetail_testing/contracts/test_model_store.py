"""ModelStore: what it lists it also finds, and nothing on the machine changes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.model_store import ModelStore, StorePlaces, WantedModel
from dovetail_testing.contract import default_options, requires

NOWHERE = ("no/such-model", "no-such:tag", "../out", "/", ":", "a/b/c/d:e", "..:Q4_0", "")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorePlaces]:
    """Yield places of a home without other models, with one model in the hub's cache and one in a
    folder."""
    for name, folder in (("HOME", "home"), ("HF_HUB_CACHE", "usual")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    for name in ("OLLAMA_MODELS", "MODELSCOPE_CACHE", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / ("c" * 40)
    for place in (snapshot, tmp_path / "models" / "mine"):
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
        header = json.dumps({}).encode()
        (place / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("c" * 40)
    yield StorePlaces(model_dirs=(str(tmp_path / "models"),), download_dir=str(tmp_path / "hub"))


@pytest.fixture
def store(plugin: Any, places: StorePlaces) -> ModelStore:
    """Return the store with its default options."""
    found: ModelStore = plugin(default_options(plugin), places)
    return found


class TestModelStore:
    """Clauses of model stores."""

    kind = "model_store"

    def test_says_where_models_are(self, plugin: Any) -> None:
        """The title is not empty, and `removal` is complete with a name and a path."""
        assert plugin.title.strip()
        assert plugin.removal.format(name="NAME", path="PATH").strip()

    def test_finds_what_it_lists(self, store: ModelStore) -> None:
        """A model of the list without a fault is found by its name, at the same path."""
        for model in store.models():
            assert model.name and model.store == store.title
            found = store.find(WantedModel(name=model.name))
            assert model.fault or (found is not None and found.path == model.path)

    def test_paths_exist(self, store: ModelStore) -> None:
        """A model without a fault is there, with its size."""
        for model in store.models():
            assert model.fault or (model.path.exists() and model.num_bytes >= 0)

    @pytest.mark.parametrize("name", NOWHERE)
    def test_finds_nothing_else(self, store: ModelStore, name: str) -> None:
        """A name of no model is not found, whatever its characters are."""
        assert store.find(WantedModel(name=name)) is None

    def test_a_missing_revision_is_not_another(self, store: ModelStore) -> None:
        """A revision that is not here is not answered with another one."""
        for model in store.models():
            assert store.find(WantedModel(name=model.name, revision="d" * 40)) is None

    def test_changes_nothing(self, store: ModelStore, tmp_path: Path) -> None:
        """Listing and finding write no file."""
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        for model in store.models():
            store.find(WantedModel(name=model.name))
        assert before == sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))

    @requires("fetches")
    def test_each_revision_has_a_folder(self, store: ModelStore) -> None:
        """The folders of two revisions differ."""
        wanted = (WantedModel(name="org/model", revision=one * 40) for one in "ab")
        one, other = map(store.folder, wanted)
        assert one.is_absolute() and one != other

    def test_a_listing_repeats(self, store: ModelStore) -> None:
        """Two listings of the same files are equal."""
        assert list(store.models()) == list(store.models())
