"""GGUF files of families whose converters change more than names: what is served is the checkpoint.

Files are written with the gguf package's names, plain and quantized.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dovetail_plugins.gguf._architectures import READ
from dovetail_plugins.gguf._config import read_config
from dovetail_plugins.gguf.reading.file import read_model
from support import gguf_recent
from support.gguf_cases import CASES
from support.gguf_files import write_gguf
from support.gguf_models import checkpoint, loaded, logits_of, prompt, reference, transformers_model

pytest.importorskip("gguf")

SAID_OTHERWISE = {
    "bos_token_id", "eos_token_id", "dtype", "quantization_config", "layer_types", "rope_theta",
    "attn_config", "moe_topk", "rope_scaling", "sliding_window",
}  # fmt: skip
"""Fields that have another form, or are compared by what they make of the model."""
NOT_SAID = {
    "deepseek3": {"num_nextn_predict_layers"},
    "mamba": {"max_position_embeddings"},
    "falcon-mamba": {"max_position_embeddings"},
    "mamba2": {"max_position_embeddings"},
    "granitehybrid": {"max_position_embeddings", "position_embedding_type"},
    "nemotron_h": {"max_position_embeddings"},
    "lfm2": {"intermediate_size", "block_auto_adjust_ff_dim"},
    "dots1": {"max_window_layers"},
    "ernie4_5-moe": {"moe_layer_end_index"},
    **gguf_recent.NOT_SAID,
}
"""Fields that no file has as the checkpoint does: they are told by others, or unused."""
LOOSE = 1e-4
"""Where exp and log, or a norm's one, are taken and undone before a recurrence."""
LOOSE_CASES = {"qwen3next", *gguf_recent.LOOSE_CASES}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_checkpoint(case: str, tmp_path: Path) -> None:
    name, changes, _ = CASES[case]
    folder = checkpoint(tmp_path / "hf", name, **changes)
    file, tokens = tmp_path / "model.gguf", prompt(40)
    write_gguf(folder, file, architecture=gguf_recent.OF_CASE.get(case, ""))
    config, source = read_config(file), json.loads((folder / "config.json").read_text())
    assert config is not None
    assert config["architectures"][0] in READ[architecture_of(file)].split()
    unsaid = SAID_OTHERWISE | NOT_SAID.get(case, set())
    common = {key for key in set(config) & set(source) if key not in unsaid}
    assert {k: config[k] for k in common} == {k: source[k] for k in common}
    (got,) = loaded(file).forward([(0, tokens)])
    right = logits_of(transformers_model(folder), tokens)
    torch.testing.assert_close(got, right, rtol=1e-5, atol=LOOSE if case in LOOSE_CASES else 2e-5)


def architecture_of(file: Path) -> str:
    return str(read_model(file).settings["general.architecture"])


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("case", CASES)
def test_its_matrices_may_be_quantized(case: str, tmp_path: Path) -> None:
    """Types that change from matrix to matrix: fused ones are of several."""
    name, changes, wide = CASES[case]
    folder = checkpoint(tmp_path / "hf", name, **{**changes, **wide})
    file, tokens = tmp_path / "model.gguf", prompt(24)
    given: list[str] = []

    def type_of(tensor: str) -> str:
        given.append(tensor)
        return ("Q4_K", "Q8_0", "Q6_K")[len(given) % 3]

    name = gguf_recent.OF_CASE.get(case, "")
    meant = write_gguf(folder, file, type_of, architecture=name)
    right = reference(folder, meant, tokens, tmp_path / "meant")
    config = read_config(file)
    assert config is not None
    assert {"Q4_K", "Q8_0"} <= set(config["quantization_config"]["types"].values())
    (got,) = loaded(file).forward([(0, tokens)])
    assert (got - right).abs().max() <= 1e-3 * (right.max() - right.min())
