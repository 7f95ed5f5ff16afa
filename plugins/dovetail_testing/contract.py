"""What contract files are written with: `requires`, clause names, option objects. Needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from dovetail import registry
from dovetail.errors import PluginError, UnavailablePlugin
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.platform import Platform
from dovetail.interfaces.plugin import Plugin

Clause = TypeVar("Clause")
_GATES = "dovetail_gates"
SECOND_FILES = {
    "attention_indexed": "attention_backend",
    "attention_latents": "attention_backend",
    "attention_layouts": "attention_backend",
    "attention_lse": "attention_backend",
    "attention_shared": "attention_backend",
    "worker_drafter": "drafter",
}
"""Contract files in addition to test_<kind>.py: the rest of their names after "test_" -> kind."""


def requires(word: str) -> Callable[[Clause], Clause]:
    """Return a decorator: the clause runs only for plugins that claim this capability."""
    return _gated(word, claimed=True)


def without(word: str) -> Callable[[Clause], Clause]:
    """Return a decorator: the clause runs only for plugins that do not claim this capability."""
    return _gated(word, claimed=False)


@contextmanager
def skipping_unavailable() -> Iterator[None]:
    """Skip the test if a plugin lacks a package that it needs to run or to write."""
    try:
        yield
    except UnavailablePlugin as error:
        pytest.skip(str(error))


def gates_of(clause: Any) -> tuple[tuple[str, bool], ...]:
    """Return (word, whether it must be claimed) of every gate on a clause."""
    gates: tuple[tuple[str, bool], ...] = getattr(clause, _GATES, ())
    return gates


def _gated(word: str, *, claimed: bool) -> Callable[[Clause], Clause]:
    # An attribute, not a pytest mark: marks must be declared in every project that is strict.
    def mark(clause: Clause) -> Clause:
        setattr(clause, _GATES, (*gates_of(clause), (word, claimed)))
        return clause

    return mark


def files_of(kind: str) -> list[str]:
    """Return the modules that hold a kind's clauses ("plugin": the clauses of every kind)."""
    stems = [kind, *(stem for stem, owner in SECOND_FILES.items() if owner == kind)]
    return [f"dovetail_testing.contracts.test_{stem}" for stem in stems]


def clause_name(function: str, parameters: str = "") -> str:
    """Return the name of a clause as `expected_failures` spells it: window[8-16]."""
    name = function.removeprefix("test_")
    return f"{name}[{parameters}]" if parameters else name


def default_options(plugin: type[Any]) -> Any:
    """Return the plugin's options with every default."""
    return plugin.Options()


def device_of(plugin: type[Plugin]) -> str:
    """Return torch's type of an available device on which the plugin runs; skip if none is."""
    devices = plugin.info.devices
    if not devices or "cpu" in devices:
        return "cpu"
    import torch

    for entry in registry.entries("platform"):
        try:
            platform: type[Platform] = registry.admin.load_entry(entry)
        except PluginError:
            continue  # no such device is here
        device = platform.torch_type or platform.device_type
        if platform.device_type in devices and (device != "cuda" or torch.cuda.is_available()):
            return device
    pytest.skip(f"not run here: needs {' or '.join(devices)}")


def model_spec(**changes: Any) -> ModelSpec:
    """Return the facts of an imagined tiny checkpoint of RandomLogitsForCausalLM."""
    facts: dict[str, Any] = {
        "path": "",
        "architecture": "RandomLogitsForCausalLM",
        "hf_config": {"logits": "random"},
        "dtype": "float32",
        "vocab_size": 64,
        "hidden_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_size": 8,
        "max_position_tokens": 128,
        "eos_token_ids": (0,),
    }
    return ModelSpec(**(facts | changes))
