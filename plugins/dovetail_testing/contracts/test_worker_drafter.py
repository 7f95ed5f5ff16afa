"""WorkerDrafter: states and logits of every token, however the tokens come, the same each time."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.rules.model.architectures import registered
from dovetail.config.rules.selections import select
from dovetail.interfaces.data.spec import ModelSpec, RankSpec
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import NoOptions
from dovetail.layers.weights import finish_weights
from dovetail_testing.contract import default_options, model_spec, requires, without
from dovetail_testing.harness import PagedModel
from dovetail_testing.tiny.transformer import PlainWeights

VOCAB_SIZE, SIZE, MAX_TOKENS = 64, 32, 3
RAW: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "vocab_size": VOCAB_SIZE,
}
TOKENS = [[(7 * i * i + 3 * i + row) % VOCAB_SIZE for i in range(17 - 4 * row)] for row in range(3)]
TARGET = model_spec(vocab_size=VOCAB_SIZE, hidden_size=SIZE, num_layers=6, hf_config=RAW)


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Return random numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3


class FakeTarget:
    """The drafter's target model, with these settings: a table and a head."""

    rank = RankSpec()

    def __init__(self, raw: dict[str, Any]) -> None:
        self.spec: ModelSpec = msgspec.structs.replace(TARGET, hf_config=raw)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' vectors."""
        return drawn(1, VOCAB_SIZE, SIZE)[token_ids]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return hidden @ drawn(2, SIZE, VOCAB_SIZE)

    def attention(self, name: str) -> nn.Module:
        """It caches nothing. Raises: LookupError"""
        raise LookupError(name)


class Beside(nn.Module):
    """A drafter as a model: a token's state depends only on the token."""

    def __init__(self, drafter: WorkerDrafter) -> None:
        super().__init__()
        self.inside = drafter.module()
        self.drafter = drafter
        self.width = SIZE * max(1, len(drafter.inner_layers()))
        self.table = drawn(3, VOCAB_SIZE, self.width)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the drafter's states of known tokens. Shapes: [T], [T] -> [T, E]"""
        states = None
        if "hidden_states" in self.drafter.capabilities:
            states = self.table[token_ids]
        return self.drafter.advance(token_ids, positions, states, 0)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits after known tokens. Shapes: [T, E] -> [T, V]"""
        return self.drafter.logits(states, 0)


@pytest.fixture
def drafter(plugin: Any, tmp_path: Path) -> WorkerDrafter:
    """Return the drafter of a tiny checkpoint, its weights random."""
    raw = RAW | plugin.example_settings
    (tmp_path / "config.json").write_text(json.dumps(raw))
    model = load_model_facts(tmp_path, overrides=plugin.settings(raw, TARGET), dtype="float32")
    name = registered(model.architecture)
    context = DraftContext(
        build=BuildContext(model=model, quant=PlainWeights(NoOptions(), model), device="cpu"),
        target=FakeTarget(raw),
        max_draft_tokens=MAX_TOKENS,
        model_plugin=None if name is None else select("model", name),
    )
    new_drafter: WorkerDrafter = plugin(default_options(plugin), context)
    module = new_drafter.module()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(drawn(number, *parameter.shape))
    finish_weights(module)
    return new_drafter


class TestWorkerDrafter:
    """Clauses of drafters that run on the worker."""

    kind = "drafter"

    @requires("on_worker")
    def test_is_of_its_sort(self, plugin: Any) -> None:
        """What claims to run on the worker derives from WorkerDrafter."""
        assert issubclass(plugin, WorkerDrafter)

    @requires("on_worker")
    def test_leaves_the_settings_alone(self, plugin: Any) -> None:
        """What was read of config.json is as it was."""
        raw = copy.deepcopy(RAW | plugin.example_settings)
        before = copy.deepcopy(raw)
        plugin.settings(raw, TARGET)
        assert raw == before

    @requires("on_worker")
    @without("model_cache")
    def test_batch_and_chunks(self, drafter: WorkerDrafter) -> None:
        """Rows in one batch, cut into chunks and single tokens, give the logits of single rows."""
        with torch.inference_mode():
            alone = [PagedModel(Beside(drafter)).forward([(0, row)])[0] for row in TOKENS]
            model, at = PagedModel(Beside(drafter)), [0] * len(TOKENS)
            got: list[list[torch.Tensor]] = [[] for _ in TOKENS]
            for sizes in ((5, 3, 1), (1, 1, 1), (1, 4, 2), (99, 99, 99)):
                batch = [(n, TOKENS[n][at[n] : at[n] + size]) for n, size in enumerate(sizes)]
                for (number, tokens), logits in zip(batch, model.forward(batch), strict=True):
                    got[number].append(logits)
                    at[number] += len(tokens)
        for found, wanted in zip(got, alone, strict=True):
            torch.testing.assert_close(torch.cat(found), wanted, rtol=0, atol=1e-4)

    @requires("on_worker")
    @without("model_cache")
    def test_logits_over_the_vocabulary(self, drafter: WorkerDrafter) -> None:
        """At every place of a draft there is a number for each of the model's tokens, some of them
        finite, and none is NaN."""
        model = PagedModel(Beside(drafter))
        tokens = TOKENS[0]
        with torch.inference_mode():
            assert model.forward([(0, tokens)])[0].shape == (len(tokens), VOCAB_SIZE)
        for logits in guessed(drafter):
            assert logits.shape == (1, VOCAB_SIZE)
            assert bool(torch.isfinite(logits).any()) and not bool(logits.isnan().any())

    @requires("on_worker")
    @without("model_cache")
    def test_is_deterministic(self, drafter: WorkerDrafter) -> None:
        """Two runs give the same guesses."""
        for one, other in zip(guessed(drafter), guessed(drafter), strict=True):
            assert torch.equal(one, other)

    @requires("hidden_states")
    @without("model_cache")
    def test_states_count(self, drafter: WorkerDrafter) -> None:
        """The same token after another state is followed by other logits."""
        beside = Beside(drafter)
        with torch.inference_mode():
            found = []
            for seed in (4, 5):
                model = PagedModel(beside)
                beside.table = drawn(seed, VOCAB_SIZE, beside.width)
                found.append(model.forward([(0, [5])])[0])
        assert not torch.equal(*found)

    @requires("on_worker")
    @without("model_cache")
    def test_owns_nothing_of_the_model(self, drafter: WorkerDrafter) -> None:
        """Its module has names for a checkpoint's tensors, and counts only its own layers."""
        module: Any = drafter.module()
        module.weight_map()
        own = sum(1 for _ in module.modules())
        assert own < 200 and len(list(module.parameters())) > 0


def guessed(drafter: WorkerDrafter) -> list[torch.Tensor]:
    """Return the logits at each position of a draft after one token."""
    with torch.inference_mode():
        beside = Beside(drafter)
        at_depth = _AtDepth(drafter, beside)
        model = PagedModel(at_depth)
        found, token = [], TOKENS[0][0]
        for _ in range(MAX_TOKENS):
            logits = model.forward([(0, [token])])[0]
            found.append(logits)
            token = int(logits.argmax())
    return found


class _AtDepth(nn.Module):
    """A drafter as a model that goes one place further at every call."""

    def __init__(self, drafter: WorkerDrafter, beside: Beside) -> None:
        super().__init__()
        self.beside, self.drafter, self.depth = beside, drafter, -1
        self.states: torch.Tensor | None = None

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.depth += 1
        if self.states is None:
            self.states = self.beside(token_ids, positions)
        else:
            given = self.states if "hidden_states" in self.drafter.capabilities else None
            self.states = self.drafter.advance(token_ids, positions, given, self.depth)
        return self.states

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return self.drafter.logits(states, self.depth)
