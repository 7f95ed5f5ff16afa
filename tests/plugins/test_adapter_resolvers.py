"""The folder of adapters: which names mean something in it, and for which model."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter_resolver import ResolverFacts
from dovetail_plugins.adapter_resolvers.folder import FolderResolver


def resolver(folder: Path | str, *names: str, model: str = "/models/base") -> FolderResolver:
    facts = ResolverFacts(base_names=names or ("org/base",), model_path=model)
    return FolderResolver(FolderResolver.Options(path=str(folder)), facts)


def write(folder: Path, base: object = "org/base") -> Path:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_a_base_fits_by_name_and_by_folder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    bases = {"by-id": "org/base", "by-name": "served", "by-path": f"{model}/", "other": "org/other",
             "none": "", "null": None}  # fmt: skip
    for name, base in bases.items():
        write(tmp_path / "all" / name, base)
    made = resolver(tmp_path / "all", "org/base", "served", model=str(model))
    assert [name for name in bases if made.find(name)] == ["by-id", "by-name", "by-path"]


def test_a_link_may_lead_anywhere_a_name_may_not(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "linked").symlink_to(write(tmp_path / "elsewhere"))
    made = resolver(tmp_path / "all")
    found = made.find("linked")
    assert found is not None and found.path == str(tmp_path / "all" / "linked")
    assert made.find("../elsewhere") is None


def test_a_config_that_cannot_be_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (write(tmp_path / "broken") / "adapter_config.json").write_text("{")
    (write(tmp_path / "list") / "adapter_config.json").write_text("[]")
    made = resolver(tmp_path)
    with caplog.at_level(logging.INFO):
        assert made.find("broken") is None
        assert made.find("list") is None
    assert "broken" in caplog.text and "cannot be read" in caplog.text


@pytest.mark.parametrize("path", ["", "/no/such/folder"])
def test_it_needs_a_folder(path: str) -> None:
    with pytest.raises(ConfigError, match=path or "no folder"):
        resolver(path)
