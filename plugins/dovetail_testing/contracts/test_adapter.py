"""Adapter method: reads folders of the types it names, whole or not at all, and runs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod, AdapterWeights
from dovetail_testing.checkpoints import code_running_pickle
from dovetail_testing.contract import default_options, model_spec, requires, without

SIZE = 8
"""The hidden size of the model that adapters are read for."""
CONFIG, FILE, BIN = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "LORA": (
        {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]},
        {f"{MODULE}.lora_A.weight": (2, SIZE), f"{MODULE}.lora_B.weight": (SIZE, 2)},
    ),
    "IA3": ({"target_modules": ["q_proj"]}, {f"{MODULE}.ia3_l": (SIZE, 1)}),
    "PROMPT_TUNING": ({"num_virtual_tokens": 3}, {"prompt_embeddings": (3, SIZE)}),
    "P_TUNING": ({"num_virtual_tokens": 3}, {"prompt_embeddings": (3, SIZE)}),
}
"""PEFT's types: their extra fields in adapter_config.json, and the shapes of tensors."""
Json = dict[str, Any]


def tensors_of(kind: str) -> dict[str, torch.Tensor]:
    """Return the tensors of an example."""
    generator = torch.Generator().manual_seed(4)
    shapes = EXAMPLES.get(kind, ({}, {"base_model.model.some.tensor": (2,)}))[1]
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def written(folder: Path, kind: str) -> Json:
    """Write an example without weights; return its config."""
    config = {"peft_type": kind, **EXAMPLES.get(kind, ({}, {}))[0]}
    (folder / CONFIG).write_text(json.dumps(config))
    return config


def numbers(weights: AdapterWeights) -> dict[str, torch.Tensor]:
    """Return all tensors that were read, each with its place."""
    found = {} if weights.prompt is None else {"prompt": weights.prompt}
    for module, change in weights.changes.items():
        for name in change.__dataclass_fields__:
            value = getattr(change, name)
            if isinstance(value, torch.Tensor):
                found[f"{module}.{name}"] = value
    return found


@pytest.fixture
def method(plugin: Any) -> AdapterMethod:
    """Return the method with its default options."""
    adapter_method: AdapterMethod = plugin(default_options(plugin), model_spec(hidden_size=SIZE))
    return adapter_method


@pytest.fixture
def kind(plugin: Any) -> str:
    """Return the first type that the method reads."""
    return str(plugin.peft_types[0])


@pytest.fixture
def example(kind: str, tmp_path: Path) -> Json:
    """Write an adapter of the method's type; return its config. Skips if none is known here."""
    if kind not in EXAMPLES:
        pytest.skip(f"there is no example of the type {kind}")
    save_file(tensors_of(kind), tmp_path / FILE)
    return written(tmp_path, kind)


def refusal(method: AdapterMethod, folder: Path, config: Json) -> ConfigError:
    """Return why a folder is not read; whatever else is raised is a fault."""
    with pytest.raises(ConfigError) as caught:
        method.read(folder, config)
    assert caught.value.what and str(folder) in str(caught.value.where), "name the file"
    return caught.value


class TestAdapter:
    """Clauses of adapter methods."""

    kind = "adapter"

    def test_names_types(self, plugin: Any) -> None:
        """It says which values of peft_type it reads, in capitals as PEFT writes them."""
        assert plugin.peft_types and all(
            isinstance(one, str) and one == one.upper() for one in plugin.peft_types
        )

    def test_reads_an_adapter(self, method: AdapterMethod, tmp_path: Path, example: Json) -> None:
        """The result has finite numbers, and only kinds of changes that the method claims."""
        weights = method.read(tmp_path, example)
        found = numbers(weights)
        assert found and all(bool(torch.isfinite(one).all()) for one in found.values())
        capabilities = type(method).capabilities
        assert not weights.changes or "changes_modules" in capabilities
        assert weights.prompt is None or "prompt" in capabilities

    def test_reads_alike_twice(self, method: AdapterMethod, tmp_path: Path, example: Json) -> None:
        """An adapter does not depend on those that were read before."""
        first = {name: one.clone() for name, one in numbers(method.read(tmp_path, example)).items()}
        again = numbers(method.read(tmp_path, example))
        assert first.keys() == again.keys()
        assert all(torch.equal(one, again[name]) for name, one in first.items())

    @requires("changes_modules")
    def test_modules_are_named_as_in_the_model(
        self, method: AdapterMethod, tmp_path: Path, example: Json
    ) -> None:
        """Modules have the checkpoint's names, without what PEFT puts around them."""
        for module in method.read(tmp_path, example).changes:
            assert module == MODULE.removeprefix("base_model.model.")

    def test_missing_weights_are_told(
        self, method: AdapterMethod, kind: str, tmp_path: Path
    ) -> None:
        """A folder without weights is refused by name."""
        refusal(method, tmp_path, written(tmp_path, kind))

    def test_torn_weights_are_told(self, method: AdapterMethod, kind: str, tmp_path: Path) -> None:
        """A file that cannot be read is refused by name."""
        (tmp_path / FILE).write_bytes(b"\x40\0\0\0\0\0\0\0{")
        refusal(method, tmp_path, written(tmp_path, kind))

    def test_unknown_tensors_are_told(
        self, method: AdapterMethod, tmp_path: Path, kind: str, example: Json
    ) -> None:
        """Tensors that mean nothing to the method are not passed over."""
        unknown = {"base_model.model.model.layers.0.some.vera_lambda_d": torch.ones(2)}
        save_file(tensors_of(kind) | unknown, tmp_path / FILE)
        refusal(method, tmp_path, example)

    def test_runs_no_code(self, method: AdapterMethod, kind: str, tmp_path: Path) -> None:
        """A pickle that holds more than tensors is refused, and nothing of it is run."""
        (tmp_path / BIN).write_bytes(code_running_pickle(tmp_path / "trace"))
        refusal(method, tmp_path, written(tmp_path, kind))
        assert not (tmp_path / "trace").exists(), "code of the file was run"

    @without("prompt")
    def test_claims_its_vectors(self, method: AdapterMethod, kind: str) -> None:
        """A method that does not say so puts nothing before a prompt."""
        assert method.num_prompt_tokens({"peft_type": kind, "num_virtual_tokens": 3}) == 0

    @requires("prompt")
    def test_counts_its_vectors(self, method: AdapterMethod, tmp_path: Path, example: Json) -> None:
        """The number of vectors matches the config."""
        prompt = method.read(tmp_path, example).prompt
        assert prompt is not None
        assert tuple(prompt.shape) == (method.num_prompt_tokens(example), SIZE)
