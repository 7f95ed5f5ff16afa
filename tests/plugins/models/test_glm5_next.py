"""GLM-5-Next against transformers: rows whole, cut, together and divided over ranks, where a query
picks 3 of 15 pools; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionBackend
from dovetail_testing.harness import PagedModel, load_model, load_plugin
from dovetail_testing.tiny.families import VOCAB_SIZE
from support.row_pieces import pieces
from support.thread_ranks import divided_both_ways
from support.tiny_glm5_next import INDEXED, LINEAR, write

TOKENS = torch.randint(3, VOCAB_SIZE, (60,), generator=torch.Generator().manual_seed(2)).tolist()

TWO = {
    "num_hidden_layers": 2,
    "layer_types": [LINEAR, INDEXED],
    "mlp_layer_types": ["dense", "sparse"],
    "indexer_types": ["full", "full"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("glm5_next"))


@pytest.fixture(scope="module")
def wanted(checkpoint: Path) -> torch.Tensor:
    theirs = transformers.AutoModelForImageTextToText.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found: torch.Tensor = theirs.eval()(input_ids=torch.tensor([TOKENS])).logits[0]
    return found


@pytest.mark.parametrize("backend", ["native_cpu", "torch_sdpa", None])
def test_rows_attend_to_the_pools_that_they_pick(
    checkpoint: Path, wanted: torch.Tensor, backend: str | None
) -> None:
    chosen = backend and load_plugin(AttentionBackend, "attention_backend", backend)  # type: ignore[type-abstract]
    for whole in (True, False):
        model = PagedModel(load_model(checkpoint), backend=chosen or None, block_tokens=16)
        found = model.forward([(0, TOKENS)]) if whole else pieces(model, TOKENS)
        parts = [wanted] if whole else [wanted[7:], wanted, wanted[32:50]]
        for own, theirs in zip(found, parts, strict=True):
            assert (own - theirs).abs().max() < 1e-4


def test_ranks_and_stages_pick_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, **TWO)
    (whole,) = PagedModel.load(path).forward([(0, TOKENS)])
    for model in divided_both_ways(path, monkeypatch):
        found = [model.forward([(0, TOKENS[a:b])])[0] for a, b in ((0, 40), (40, 41), (41, 60))]
        assert (torch.cat(found) - whole).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"index_kpool_always_select_tail": False}, "after the last whole pool"),
        ({"indexer_types": ["full", "shared"]}, "an earlier layer's indexer"),
    ],
)
def test_other_picks_are_refused(fields: dict[str, object], why: str, tmp_path: Path) -> None:
    path = write(tmp_path, **TWO | fields)
    with pytest.raises(ConfigError, match=why):
        load_model(path)
