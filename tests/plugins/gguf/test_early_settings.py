"""Wrong settings and tensors of early families' files: a ConfigError, or a config, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plugins.gguf.test_early_families import written
from plugins.gguf.test_uneven_families import UNEVEN

from dovetail.errors import ConfigError
from dovetail_plugins.gguf._config import config_of
from dovetail_plugins.gguf.reading.file import GgufModel, read_model
from support.gguf_early import CASES, write_checkpoint
from support.gguf_files import write_gguf
from support.uneven_llamas import mixture, uneven

pytest.importorskip("gguf")

WRONG: tuple[Any, ...] = (
    *(None, -1, 0, 10**9, 1.5, float("nan"), True, "x", "linear", "yarn"),
    *([], [1], [0, 0], [-1] * 6, [0] * 6, [3] * 6, ["a"] * 6),
)
"""Values of another kind, or that are impossible; None: the setting is missing."""
OFTEN = ("rope.scaling.type", "rope.scaling.factor", "rope.freq_base", "attention.key_length",
         "expert_shared_count", "hidden_activation")  # fmt: skip


def file_of(name: str, folder: Path) -> GgufModel:
    """Return the file of a case."""
    source, file = folder / "hf", folder / "m.gguf"
    if name == "deci":
        uneven(source)
        write_gguf(source, file, adders=UNEVEN)
    elif name == "deepseek":
        mixture(source)
        write_gguf(source, file)
    else:
        written(name, write_checkpoint(CASES[name], source), file)
    return read_model(file)


def changed(model: GgufModel) -> Iterator[tuple[str, GgufModel]]:
    """Yield models with one setting or one tensor changed, and what that is."""
    prefix = model.settings["general.architecture"]
    keys = [key for key in model.settings if not key.startswith(("tokenizer.", "general.arch"))]
    for key in dict.fromkeys([*keys, *(f"{prefix}.{name}" for name in OFTEN)]):
        for value in WRONG:
            others = {name: x for name, x in model.settings.items() if name != key}
            settings = others if value is None else {**others, key: value}
            yield f"{key} {value}", replace(model, settings=settings)
    for extent in model.extents:
        rest = tuple(one for one in model.extents if one is not extent)
        yield f"no {extent.name}", replace(model, extents=rest)
        yield f"flat {extent.name}", replace(model, extents=(*rest, replace(extent, shape=(3,))))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", [*CASES, "deci", "deepseek"])
def test_errors_are_of_the_configuration(name: str, tmp_path: Path) -> None:
    model = file_of(name, tmp_path)
    refused = 0
    for what, other in changed(model):
        try:
            config_of(other)
        except ConfigError as error:
            refused += 1
            assert str(model.path) in str(error), what
    assert refused > 50
