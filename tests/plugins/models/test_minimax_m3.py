"""MiniMax M3 as released, its indexers' settings under other names; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail import LLM
from dovetail.errors import ConfigError
from dovetail_plugins.model_types.minimax_m3 import RELEASED
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint

NAME = "MiniMaxM3VLForCausalLM"
TOKENS = torch.randint(3, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(2)).tolist()


def changed(path: Path, *dropped: str, **fields: Any) -> Path:
    file = path / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k not in dropped}
    file.write_text(json.dumps(config | fields))
    return path


def test_released_settings_are_those_of_transformers(tmp_path: Path) -> None:
    path = write_tiny_checkpoint(tmp_path, NAME, index_topk_blocks=2)
    (wanted,) = PagedModel.load(path).forward([(0, TOKENS)])
    config = json.loads((path / "config.json").read_text())
    released = {other: config[name] for name, other in RELEASED.items()}
    names = ("layer_types", "mlp_layer_types", *RELEASED)
    sparse = {**released, "sparse_attention_freq": [0, 1]}
    changed(path, *names, sparse_attention_config=sparse, moe_layer_freq=[0, 1])
    (found,) = PagedModel.load(path).forward([(0, TOKENS)])
    assert torch.equal(found, wanted)
    with pytest.raises(ConfigError, match="passes block_indices"):  # which would see all keys
        load_model(path, model_name="transformers")


@pytest.mark.parametrize(
    ("fields", "why"),
    [({"index_n_heads": 1}, "one is needed for each"), ({"index_local_blocks": 0}, "own token")],
)
def test_indexers_that_do_not_fit_the_heads_are_refused(
    fields: dict[str, int], why: str, tmp_path: Path
) -> None:
    path = changed(write_tiny_checkpoint(tmp_path, NAME), **fields)
    with pytest.raises(ConfigError, match=why):
        load_model(path)


def test_blocks_of_the_cache_divide_those_that_are_picked(tmp_path: Path) -> None:
    sizes = {"index_block_size": 16, "index_topk_blocks": 2}
    path = write_tiny_checkpoint(tmp_path, NAME, **sizes)
    with pytest.raises(ConfigError, match="a block of the cache has 32"):
        LLM(str(path), block_size=32, max_model_len=96, use_tqdm_on_load=False)
