"""Which projector file (mmproj) a GGUF model is served with, and which are refused."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dovetail.cli.parser import Parser
from dovetail.config.checkpoint.formats import read_settings
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.errors import ConfigError
from dovetail.interfaces.load_format import Checkpoint
from dovetail.multimodal.processors import load_processor, processor_folder
from dovetail_plugins.gguf.projectors.kinds import projectors
from dovetail_plugins.gguf.projectors.kinds.llava import DECODERS
from dovetail_plugins.load_formats.auto import Auto
from support.gguf_models import loaded
from support.gguf_projectors import write_pair
from support.tiny_media import write_media_checkpoint
from support.tiny_wholes import write_whole

gguf = pytest.importorskip("gguf", reason="gguf is not installed")

GEMMA, LLAVA = "Gemma3ForConditionalGeneration", "LlavaForConditionalGeneration"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return the text model's and the projector's file of two families."""
    found = {}
    for family in (GEMMA, LLAVA):
        folder = tmp_path_factory.mktemp(family)
        source = write_media_checkpoint(folder / "checkpoint", family)
        found[family] = (folder / "text.gguf", folder / "projector.gguf")
        write_pair(source, *found[family])
    return found


@pytest.fixture
def folder(stored: dict[str, tuple[Path, Path]], tmp_path: Path) -> Path:
    """Return a folder with Gemma's text model alone."""
    shutil.copy(stored[GEMMA][0], tmp_path / "gemma-Q4_0.gguf")
    return tmp_path


def put(stored: dict[str, tuple[Path, Path]], target: Path, family: str = GEMMA) -> Path:
    shutil.copy(stored[family][1], target)
    return target


def used(folder: Path, mmproj: str | None = None) -> str | None:
    """Return the name of the projector that is read with the folder's Gemma."""
    path = folder / "gemma-Q4_0.gguf"
    config = read_settings(path, mmproj=mmproj)
    headers = Auto(Auto.Options(mmproj=mmproj)).headers(Checkpoint(path=str(path)))
    names = {header.name for header in headers or ()}
    has_both = any("vision_tower" in name for name in names)
    assert has_both == ("vision_config" in config)  # settings and weights agree
    return Path(config["mmproj"]).name if has_both else None


def test_a_model_alone_is_a_text_model(folder: Path) -> None:
    assert used(folder) is None
    assert read_settings(folder / "gemma-Q4_0.gguf")["architectures"] == ["Gemma3ForCausalLM"]


def test_one_next_to_the_model_is_used(stored: Any, folder: Path) -> None:
    put(stored, folder / "mmproj-model-f16.gguf")
    assert used(folder) == "mmproj-model-f16.gguf"
    assert used(folder, "") is None
    found = load_model_facts(folder)  # a folder with both is one model
    assert found.architecture == GEMMA


def test_half_precision_is_preferred(stored: Any, folder: Path) -> None:
    for word in ("Q8_0", "BF16", "F32", "F16"):
        put(stored, folder / f"mmproj-gemma-{word}.gguf")
    assert used(folder) == "mmproj-gemma-F16.gguf"
    assert used(folder, str(folder / "mmproj-gemma-Q8_0.gguf")) == "mmproj-gemma-Q8_0.gguf"


def test_a_shared_name_decides_between_equal_ones(stored: Any, folder: Path) -> None:
    for word in ("other", "gemma"):
        put(stored, folder / f"{word}-mmproj-f16.gguf")
    assert used(folder) == "gemma-mmproj-f16.gguf"


def test_equal_ones_are_named(stored: Any, folder: Path) -> None:
    for word in ("a", "b"):
        put(stored, folder / f"mmproj-{word}-F16.gguf")
    with pytest.raises(ConfigError, match=r"mmproj-a-F16.gguf, mmproj-b-F16.gguf") as error:
        used(folder)
    assert "--mmproj" in str(error.value)


def test_one_of_another_model_is_passed_over_among_several_models(
    stored: Any, folder: Path
) -> None:
    shutil.copy(stored[LLAVA][0], folder / "llava-Q4_0.gguf")
    put(stored, folder / "mmproj-llava-F16.gguf", LLAVA)
    assert used(folder) is None
    put(stored, folder / "mmproj-gemma-Q8_0.gguf")
    assert used(folder) == "mmproj-gemma-Q8_0.gguf"


def test_one_of_another_model_is_refused(stored: Any, folder: Path) -> None:
    wrong = put(stored, folder / "mmproj-llava.gguf", LLAVA)
    with pytest.raises(ConfigError, match='"mlp" belongs to text models') as error:
        used(folder)
    assert "--no-mmproj" in str(error.value)
    with pytest.raises(ConfigError, match='"mlp" belongs to text models'):
        used(folder, str(wrong))


def write_clip(target: Path, settings: dict[str, Any], tensors: dict[str, Any]) -> Path:
    """Write a file of the architecture clip."""
    writer = gguf.GGUFWriter(target, settings.pop("general.architecture", "clip"))
    for key, value in settings.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


WIDE = {"mm.input_projection.weight": np.zeros((32, 64), np.float32)}
FITTING = {"mm.input_projection.weight": np.zeros((32, 32), np.float32)}
SIZES = {
    "clip.vision.embedding_length": 32,
    "clip.vision.attention.head_count": 4,
    "clip.vision.block_count": 2,
}
GEMMA_TYPE = {"clip.projector_type": "gemma3"}


@pytest.mark.parametrize(
    ("settings", "tensors", "reason"),
    [
        (GEMMA_TYPE, WIDE, "64 numbers.* takes 32"),
        (GEMMA_TYPE, {"mm.0.weight": WIDE["mm.input_projection.weight"]}, "is missing"),
        (GEMMA_TYPE, FITTING, "clip.vision.embedding_length is missing"),
        (GEMMA_TYPE | SIZES, FITTING, "0 blocks, its settings say 2"),
        (GEMMA_TYPE | SIZES | {"clip.vision.attention.head_count": 3}, FITTING, "into 3 heads"),
        ({"clip.projector_type": "resampler"}, WIDE, '"resampler" is not supported; gemma3'),
        ({"general.architecture": "llama"}, WIDE, "not a projector file"),
        (
            {"clip.vision.projector_type": "gemma3", "clip.audio.projector_type": "voxtral"},
            WIDE,
            "images and of sound",
        ),
        (
            {"clip.vision.projector_type": "gemma4v", "clip.audio.projector_type": "gemma4a"},
            WIDE,
            '"gemma4v" belongs to text models of the architectures gemma4',
        ),
    ],
)
def test_a_named_file_that_does_not_fit_is_refused(
    settings: dict[str, Any], tensors: dict[str, Any], reason: str, folder: Path
) -> None:
    file = write_clip(folder / "p.gguf", dict(settings), tensors)
    with pytest.raises(ConfigError, match=reason) as error:
        used(folder, str(file))
    assert str(file) in str(error.value)


def test_an_unsupported_one_leaves_a_text_model(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_clip(folder / "mmproj.gguf", {"clip.projector_type": "resampler"}, WIDE)
    with caplog.at_level(logging.WARNING):
        assert used(folder) is None
    assert "mmproj.gguf is left out" in caplog.text


def test_a_file_cut_short_is_refused(stored: Any, folder: Path) -> None:
    file = put(stored, folder / "mmproj.gguf")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="ends at byte"):
        used(folder)


def test_a_missing_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        used(folder, str(folder / "nothing.gguf"))


def test_other_checkpoints_take_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ConfigError, match="only GGUF models"):
        read_settings(tmp_path, mmproj="x.gguf")
    assert read_settings(tmp_path, mmproj="")["model_type"] == "llama"


def changed(
    target: Path,
    source: Path,
    *,
    dropped: str = "-",
    renamed: dict[str, str] | None = None,
    settings: dict[str, Any] | None = None,
) -> Path:
    """Write a copy of a projector without the tensors whose names contain a text, with others
    renamed and other settings."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "clip")
    for field in reader.fields.values():
        if field.name.startswith("clip."):
            kind = field.types[0]
            inner = field.types[-1] if len(field.types) > 1 else None
            value = (settings or {}).get(field.name, field.contents())
            writer.add_key_value(field.name, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        if dropped not in tensor.name:
            name = (renamed or {}).get(tensor.name, tensor.name)
            writer.add_tensor(name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"renamed": {"v.post_ln.weight": "v.new.weight"}}, r"not known: v\.new\.weight"),
        ({"dropped": "blk.1.ln1"}, "missing"),
        ({"settings": {"clip.vision.image_std": [0.5, 0.0, 0.5]}}, "image_std is"),
        ({"settings": {"clip.vision.image_mean": [0.5, float("nan"), 0.5]}}, "image_mean is"),
        ({"settings": {"clip.vision.image_mean": [0.5]}}, "image_mean is"),
        ({"settings": {"clip.vision.attention.layer_norm_epsilon": float("nan")}}, "epsilon is"),
        ({"settings": {"clip.vision.image_size": 4}}, "0 patches do not divide"),
        ({"settings": {"clip.vision.projector.scale_factor": 3}}, "do not divide into groups of 3"),
        ({"settings": {"clip.vision.image_size": 16}}, r"position_embedding"),
    ],
)
def test_a_damaged_projector_is_refused(
    changes: dict[str, Any], reason: str, stored: Any, folder: Path
) -> None:
    changed(folder / "mmproj.gguf", stored[GEMMA][1], **changes)
    with pytest.raises(ConfigError, match=reason):
        loaded(folder / "gemma-Q4_0.gguf")


def test_parts_of_a_matrix_must_all_be_there(stored: Any, folder: Path) -> None:
    source = write_media_checkpoint(folder / "checkpoint", "Qwen2VLForConditionalGeneration")
    whole = folder / "whole.gguf"
    write_pair(source, folder / "qwen.gguf", whole)
    file = changed(folder / "part.gguf", whole, dropped="blk.1.attn_k.w")
    with pytest.raises(ConfigError, match=r"of 3 parts of .*blocks\.1\.attn\.qkv\.weight"):
        read_settings(folder / "qwen.gguf", mmproj=str(file))


def test_sounds_that_transformers_joins_otherwise_are_refused(tmp_path: Path) -> None:
    source = write_whole(tmp_path / "checkpoint", "glmasr", "GlmAsrForConditionalGeneration")
    weights = load_file(source / "model.safetensors")
    name = "multi_modal_projector.linear_1.weight"
    weights[name] = np.ascontiguousarray(weights[name][:, :128])  # two frames to a vector, not four
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    write_pair(source, tmp_path / "model.gguf", tmp_path / "mmproj.gguf")
    with pytest.raises(ConfigError, match="takes 128 numbers, where a block has 256"):
        read_settings(tmp_path / "model.gguf")


def test_the_page_lists_every_type() -> None:
    page = Path(__file__).parents[3] / "docs/how_to/serve_a_gguf_file.md"
    table = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    listed = {word for line in table for word in re.findall("`([^`]+)`", line)}
    for name, projector in projectors().items():
        assert {name, *projector.texts} - set(DECODERS) <= listed


def test_a_projector_alone_is_no_model(stored: Any) -> None:
    with pytest.raises(ConfigError, match="with --mmproj and this one"):
        read_settings(stored[GEMMA][1])


def test_a_snapshot_of_the_hub_has_it_above_a_folder_of_parts(stored: Any, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--gemma" / "snapshots" / ("0" * 40)
    (snapshot / "Q4_0").mkdir(parents=True)
    shutil.copy(stored[GEMMA][0], snapshot / "Q4_0" / "gemma-Q4_0.gguf")
    put(stored, snapshot / "mmproj-F16.gguf")
    assert used(snapshot / "Q4_0") == "mmproj-F16.gguf"


def test_settings_of_the_processor_are_the_file_s(stored: Any, folder: Path) -> None:
    put(stored, folder / "mmproj.gguf")
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3]}))
    model = load_model_facts(folder / "gemma-Q4_0.gguf")
    where = processor_folder(model)
    pictures = load_processor(where, "gemma3").image_processor
    assert dict(pictures.size) == {"height": 32, "width": 32}
    assert list(pictures.image_std) == [0.5, 0.5, 0.5]
    assert list(pictures.image_mean) == [0.1, 0.2, 0.3]  # the folder's own settings win
    assert processor_folder(model) == where  # written once


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--mmproj", "x.gguf"], "x.gguf"),
        (["--mmproj="], ""),
        (["--no-mmproj"], ""),
        (["--no-mmproj", "--seed", "1"], ""),
        ([], None),
    ],
)
def test_the_flag(argv: list[str], value: str | None) -> None:
    parser = Parser(prog="dovetail serve", description="")
    parser.add_argument("model_tag", nargs="?")
    add_flags(parser)
    args = parser.parse([*argv, "model.gguf"])
    config = config_of(args, model=args.model_tag)
    assert (config.load.mmproj, config.model.model) == (value, "model.gguf")
