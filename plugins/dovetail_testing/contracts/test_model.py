"""Model: the numbers of transformers on a random tiny checkpoint, however the tokens come.

The checkpoints are written by transformers itself (`dovetail_testing.tiny.models`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.config.checkpoint.experts import experts_of
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, Model
from dovetail.registry import Entry
from dovetail_testing.contract import model_spec, requires, without
from dovetail_testing.harness import PagedModel, StagedModel, load_model
from dovetail_testing.plugin import entries_for
from dovetail_testing.ranks import ODD_AND_EVEN, RankModel, divided_logits
from dovetail_testing.ranks import TOKENS as RANK_TOKENS
from dovetail_testing.tiny.families import FAMILIES, VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from dovetail_testing.tiny.transformer import PlainWeights

MAX_DIFFERENCE = 1e-4
BACKED = "transformers"
"""The entry that runs any architecture; checked on the one below."""
BACKED_ARCHITECTURE = "LlamaForCausalLM"
TOKENS = [[(7 * i * i + 3 * i + row) % VOCAB_SIZE for i in range(19 - 4 * row)] for row in range(3)]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from an architecture to its (folder, reference logits of TOKENS)."""

    @cache
    def checkpoint_and_logits(architecture: str) -> tuple[Path, list[torch.Tensor]]:
        folder = tmp_path_factory.mktemp(architecture)
        write_tiny_checkpoint(folder, architecture)
        return folder, reference_logits(folder)

    return checkpoint_and_logits


def stages_of(model: ModelSpec) -> tuple[int, int] | None:
    """Return how many layers each of two stages has, so that none reads the cache of a layer on the
    other; None if there is no such split."""
    sources = () if model.cache is None else model.cache.sources
    for first in range(model.num_layers - 1, 0, -1):
        if all((layer < first) == (source < first) for layer, source in enumerate(sources)):
            return first, model.num_layers - first
    return None


def architecture_of(entry: Entry) -> str:
    """Return the architecture a model serves: its name, or its class when it is given by path."""
    if entry.name == BACKED:
        return BACKED_ARCHITECTURE
    return entry.attribute if ":" in entry.name else entry.name


def reference_logits(folder: Path) -> list[torch.Tensor]:
    """Return transformers' logits of each row of TOKENS, [tokens, V]."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [model(torch.tensor([row])).logits[0] for row in TOKENS]


@pytest.fixture(scope="session")
def two_ranks(
    request: pytest.FixtureRequest, checkpoints: Any, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Return a function from an entry, and a placement of experts, to its (folder, logits of two
    ranks). All that clauses of this run ask for are run by one pair of processes."""
    mine = [entry for entry in entries_for("two_ranks", request) if entry.name != BACKED]
    models = [
        RankModel(str(checkpoints(architecture_of(entry))[0]), entry.name, placement)
        for entry in mine
        if architecture_of(entry) in FAMILIES
        for placement in (("", ODD_AND_EVEN) if has_experts(entry) else ("",))
    ]
    answers: dict[tuple[str, str], Any] = {}

    def of(entry: Entry, placement: str = "") -> tuple[str, Any]:
        models_by_name = {(model.name, model.expert_placement): model for model in models}
        if (entry.name, placement) not in models_by_name:
            pytest.skip(f"the kit cannot write a checkpoint of {entry.name}")
        if not answers:
            logits = divided_logits(models, tmp_path_factory.mktemp("ranks"))
            answers.update(zip(models_by_name, logits, strict=True))
        key = (entry.name, placement)
        return models_by_name[key].path, answers[key]

    return of


def has_experts(entry: Entry) -> bool:
    """Return whether the kit's checkpoint of an entry is a mixture of experts."""
    settings = FAMILIES.get(architecture_of(entry), ("", {}))[1]
    return experts_of(settings)[0] > 0


@pytest.fixture
def loaded(entry: Entry, plugin: Any, checkpoints: Any) -> tuple[PagedModel, list[torch.Tensor]]:
    """Return the model of a tiny checkpoint with its paged cache, and the reference."""
    architecture = architecture_of(entry)
    if architecture not in FAMILIES:
        pytest.skip(f"the kit cannot write a checkpoint of {architecture}")
    folder, wanted = checkpoints(architecture)
    return PagedModel.load(folder, model_name=entry.name), wanted


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Assert that logits agree."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=MAX_DIFFERENCE)


class TestModel:
    """Clauses of models."""

    kind = "model"

    @without("no_weights")
    def test_equals_transformers(self, loaded: Any) -> None:
        """Prompts computed one at a time give transformers' logits."""
        model, wanted = loaded
        for number, row in enumerate(TOKENS):
            assert_close(model.forward([(number, row)])[0], wanted[number])

    @without("no_weights")
    def test_batch_and_chunks(self, loaded: Any) -> None:
        """Prompts in one batch, cut into chunks and single tokens, give the same logits."""
        model, wanted = loaded
        got: dict[int, list[torch.Tensor]] = {number: [] for number in range(len(TOKENS))}
        at = [0] * len(TOKENS)
        for sizes in ((5, 3, 1), (1, 1, 1), (1, 4, 2), (99, 99, 99)):
            batch = [(n, TOKENS[n][at[n] : at[n] + size]) for n, size in enumerate(sizes)]
            for (number, tokens), logits in zip(batch, model.forward(batch), strict=True):
                got[number].append(logits)
                at[number] += len(tokens)
        for number, logits in got.items():
            assert_close(torch.cat(logits), wanted[number])

    @without("no_weights")
    def test_prefix_hit(self, loaded: Any) -> None:
        """A row that starts on another's full blocks gives the same logits."""
        model, wanted = loaded
        model.forward([(0, TOKENS[0])])
        model.share(0, 1, 8)
        assert_close(model.forward([(1, TOKENS[0][8:])])[0], wanted[0][8:])

    @without("no_weights")
    def test_freed_rows_leave_nothing(self, loaded: Any) -> None:
        """A row computed again after a preemption gives the same logits."""
        model, wanted = loaded
        model.forward([(0, TOKENS[0][:7]), (1, TOKENS[1])])
        model.free(0)
        assert_close(model.forward([(0, TOKENS[0])])[0], wanted[0])

    @requires("no_weights")
    def test_builds_without_weights(self, plugin: Any) -> None:
        """A model without weights has no parameter a checkpoint would fill."""
        spec = model_spec(hf_config={"replay": [{"tokens": [1]}]})
        context = BuildContext(model=spec, quant=PlainWeights(None, spec), device="cpu")
        model = plugin(plugin.Options(), context)
        assert isinstance(model, Model)
        assert isinstance(model, nn.Module)
        assert list(model.parameters()) == []

    @requires("tensor_parallel")
    def test_two_ranks_equal_one(self, entry: Entry, plugin: Any, two_ranks: Any) -> None:
        """Divided over two processes, the model gives the logits of one."""
        folder, divided = two_ranks(entry)
        assert isinstance(divided, torch.Tensor), divided
        whole = PagedModel.load(folder, model_name=entry.name).forward([(0, RANK_TOKENS)])[0]
        assert_close(divided, whole)

    @requires("pipeline_parallel")
    def test_stages_equal_the_whole(self, entry: Entry, plugin: Any, checkpoints: Any) -> None:
        """Stages that hold some of the layers each give the logits of the whole model, in a prompt
        and after it; none holds anything of another's layers."""
        architecture = architecture_of(entry)
        if architecture not in FAMILIES:
            pytest.skip(f"the kit cannot write a checkpoint of {architecture}")
        folder, _ = checkpoints(architecture)
        whole = PagedModel.load(folder, model_name=entry.name)
        layers = stages_of(load_model_facts(folder))
        if layers is None:
            pytest.skip("wherever a stage ends, a layer behind it reads the keys of one before it")
        staged = StagedModel(
            lambda rank: load_model(folder, model_name=entry.name, rank=rank), layers
        )
        names = [stage.cached_names() for stage in staged.stages]
        assert set.union(*names) == whole.cached_names()
        assert set.intersection(*names) == set()
        for tokens in (TOKENS[0][:7], TOKENS[0][7:8], TOKENS[0][8:]):
            assert_close(staged.forward([(0, tokens)])[0], whole.forward([(0, tokens)])[0])

    @requires("tensor_parallel")
    def test_two_ranks_with_experts_of_their_own_equal_one(
        self, entry: Entry, plugin: Any, two_ranks: Any
    ) -> None:
        """With whole experts on each of two processes, a mixture gives the logits of one."""
        if not has_experts(entry):
            pytest.skip(f"{entry.name} has no experts")
        folder, divided = two_ranks(entry, ODD_AND_EVEN)
        assert isinstance(divided, torch.Tensor), divided
        whole = PagedModel.load(folder, model_name=entry.name).forward([(0, RANK_TOKENS)])[0]
        assert_close(divided, whole)
