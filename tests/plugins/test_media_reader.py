"""MediaReader over a checkpoint's own processor: what is kept, and the processor's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError, RequestError
from dovetail.multimodal.content import Embeddings
from dovetail.multimodal.kept import SharedMedia
from dovetail.multimodal.reader import MediaReader
from support.tiny_media import write_media_checkpoint

PIL = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_media_checkpoint(tmp_path_factory.mktemp("llava"), "LlavaForConditionalGeneration")


def reader_of(folder: Path, **fields: Any) -> MediaReader:
    spec = resolve(Config.from_fields({"model": str(folder), "max_model_len": 100, **fields}))
    assert spec.media is not None
    return MediaReader(spec.run.model, spec.media)


class Opened:
    """A picture that counts how often it is looked at."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        return PIL.fromarray(np.full((40, 50, 3), 90, dtype=np.uint8))


@pytest.mark.parametrize(("gib", "wanted"), [(4.0, 1), (0.0, 2)])
def test_what_is_read_once_is_kept(folder: Path, gib: float, wanted: int) -> None:
    reader, picture = reader_of(folder, mm_processor_cache_gb=gib), Opened()
    first = reader.read("image", "a", picture, {})
    again = reader.read("image", "a", picture, {})
    assert picture.count == wanted
    assert first == again
    assert first.text == reader.placeholder("image") * first.num_rows


def test_the_oldest_makes_room(folder: Path) -> None:
    picture = Opened()
    size = reader_of(folder).read("image", "a", picture, {}).num_bytes
    reader, picture = reader_of(folder, mm_processor_cache_gb=2.5 * size / 2**30), Opened()
    for key in ("a", "b", "a", "c", "a", "b"):
        reader.read("image", key, picture, {})
    assert picture.count == 4  # "b" was the oldest when "c" came


def test_options_of_the_processor(folder: Path) -> None:
    usual = reader_of(folder).read("image", "a", Opened(), {})
    told = reader_of(folder, mm_processor_kwargs={"do_normalize": False})
    assert told.read("image", "a", Opened(), {}) != usual
    assert told.read("image", "b", Opened(), {"do_normalize": True}) == usual


def test_a_name_stands_for_what_had_it_last(folder: Path) -> None:
    reader, picture = reader_of(folder), Opened()
    first = reader.read("image", reader.key_of("image", "a", "mine"), picture, {})
    again = reader.read("image", reader.key_of("image", "", "mine"), picture, {})
    assert (first, picture.count) == (again, 1)
    assert reader.key_of("image", "b", "mine") == "b"  # data wins over what is remembered
    assert reader.key_of("image", "", "mine") == "b"
    assert reader.key_of("image", "", "other") not in ("a", "b")
    assert reader.key_of("audio", "", "mine") not in ("a", "b")


def test_a_cache_in_shared_memory(folder: Path) -> None:
    fields = {"mm_processor_cache_type": "shm", "mm_shm_cache_max_object_size_mb": 1}
    spec = resolve(Config.from_fields({"model": str(folder), "max_model_len": 100, **fields}))
    assert spec.media is not None
    one, other = (MediaReader(spec.run.model, spec.media) for _ in range(2))
    picture = Opened()
    first = one.read("image", one.key_of("image", "a", "mine"), picture, {})
    again = other.read("image", other.key_of("image", "", "mine"), picture, {})
    assert (first, picture.count) == (again, 1)
    kept = SharedMedia(spec.media.shared_folder, 3 * first.num_bytes, first.num_bytes)
    kept.put("large", msgspec.structs.replace(first, features=first.features * 2))
    assert kept.get("large") is None
    for key in ("b", "c", "d", "e"):
        kept.put(key, first)
    assert kept.get("a") is None and kept.get("e") == first
    place = Path(spec.media.shared_folder)
    for holder in (one._kept, other._kept):
        assert isinstance(holder, SharedMedia)
        holder.close()
    assert place.is_dir(), "one still uses it"
    kept.close()
    assert not place.exists()


def test_what_a_killed_server_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "base" / "old"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "m-x").write_bytes(b"x")
    made = SharedMedia(str(tmp_path / "base" / "new"), 1 << 20, 1 << 20)
    assert not left.exists()
    made.close()


def test_memory_is_left_for_encodings(folder: Path) -> None:
    base = {"model": str(folder), "max_model_len": 100}
    spec = resolve(Config.from_fields(base))
    rows = spec.schedule.kept_encoder_rows + spec.schedule.encoder_rows
    assert spec.run.encodings_bytes == rows * spec.run.model.hidden_size * 4
    for fields in ({"skip_mm_profiling": True}, {"limit_mm_per_prompt": {"image": 0}}):
        assert resolve(Config.from_fields({**base, **fields})).run.encodings_bytes == 0


def test_vectors_in_place_of_a_picture(folder: Path) -> None:
    reader = reader_of(folder)
    usual = reader.read("image", "a", Opened(), {})
    vectors = torch.ones(7, 32)
    for tensors in ({"embeds": vectors}, {"image_embeds": vectors[None]}):
        read = reader.read("image", str(id(tensors)), lambda t=tensors: Embeddings(tensors=t), {})
        assert read.text == reader.placeholder("image") * 7 and read.num_rows == 7
        assert [one.name for one in read.features] == ["vectors"]
    assert usual.num_rows != 7
    for wrong in ({"embeds": vectors[:, 1:]}, {"other": vectors}, {"embeds": vectors[None, None]}):
        with pytest.raises(RequestError) as told:
            reader.read("image", str(id(wrong)), lambda t=wrong: Embeddings(tensors=t), {})
        assert told.value.where == "image_embeds"


def test_what_is_seen_both_ways_needs_a_whole_cache(tmp_path: Path) -> None:
    folder = write_media_checkpoint(tmp_path, "Gemma3ForConditionalGeneration")
    fields: dict[str, Any] = {"model": str(folder), "max_model_len": 100}
    fields |= {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    with pytest.raises(ConfigError) as told:
        resolve(Config.from_fields(fields))
    assert told.value.where == "--decode-context-parallel-size"
