"""The table of GGUF architectures says of each that the gguf package names whether it is read, and
is right about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.config.rules.model.architectures import registered
from dovetail.errors import ConfigError
from dovetail_plugins.gguf._architectures import READ, UNREAD
from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.gguf.families import families
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.gguf_files import write_gguf

gguf = pytest.importorskip("gguf")

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SWEEPS = ("architectures.json", "media_architectures.json")


def served(name: str) -> bool:
    """Return whether a class is served from safetensors, by a plugin or over transformers."""
    for sweep in SWEEPS:
        results = json.loads((REFERENCE / sweep).read_text())["results"].values()
        states = {one["state"] for one in results if one["architecture"] == name}
        if states & {"native", "backed"}:
            return True
    return registered(name) is not None


def test_every_architecture_of_the_package_has_a_row() -> None:
    assert set(gguf.MODEL_ARCH_NAMES.values()) <= {*READ, *UNREAD}


def test_what_is_read_has_a_family_and_what_has_a_family_is_read() -> None:
    assert set(READ) == set(families())
    assert not set(READ) & set(UNREAD)


@pytest.mark.parametrize("architecture", READ)
def test_its_classes_are_served(architecture: str) -> None:
    assert [name for name in READ[architecture].split() if not served(name)] == []


@pytest.mark.parametrize("architecture", UNREAD)
def test_what_is_served_from_safetensors_is_read(architecture: str) -> None:
    assert [name for name in UNREAD[architecture].classes if served(name)] == []


@pytest.mark.parametrize("architecture", ["plamo2", "clip", "llada", "other"])
def test_a_file_that_is_not_read_says_why(architecture: str, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    file = tmp_path / "model.gguf"
    write_gguf(folder, file)
    known = UNREAD.get(architecture)
    raw = file.read_bytes()
    old, new = (len(one).to_bytes(8, "little") + one.encode() for one in ("llama", architecture))
    grown = len(new) - len(old)
    file.write_bytes(raw.replace(old, new, 1) + bytes(-grown % 32))
    with pytest.raises(ConfigError) as raised:
        read_config(file)
    said = str(raised.value)
    assert architecture in said
    assert (known.why if known else "not known") in said
    assert (known.fix if known else "llama") in said
