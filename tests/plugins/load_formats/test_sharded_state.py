"""What `dovetail convert` writes is the model's own parameters, and comes back as it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dovetail import LLM, SamplingParams
from dovetail.cli.main import main
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.load_format import Checkpoint
from dovetail.layers.weights import load_parameters, load_weights
from dovetail_plugins.load_formats.auto import Auto, AutoOptions
from dovetail_plugins.load_formats.sharded_state import ShardedOptions, ShardedState
from dovetail_testing.harness import build_model
from dovetail_testing.tiny.models import write_tiny_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return tiny checkpoints with fused, tied and expert layers."""
    root = tmp_path_factory.mktemp("models")
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "tied": ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
        "experts": ("MixtralForCausalLM", {}),
        "transposed": ("GPT2LMHeadModel", {}),
    }
    return {
        name: write_tiny_checkpoint(root / name, architecture, **fields)
        for name, (architecture, fields) in cases.items()
    }


def convert(source: Path, out: Path, *words: str, to: str = "sharded_state") -> int:
    return main(["convert", str(source), "--to", to, "--out", str(out), *words])


def rank_of(rank: int, size: int) -> RankSpec:
    return RankSpec(rank=rank, world_size=size, tensor_rank=rank, tensor_size=size)


def held(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in module.state_dict(keep_vars=False).items()}


@torch.inference_mode()
def loaded(folder: Path, source: Path, rank: RankSpec, *, is_divided: bool) -> nn.Module:
    module = build_model(load_model_facts(source, dtype="float32"), rank=rank)
    checkpoint = Checkpoint(path=str(folder), rank=rank)
    if is_divided:
        load_parameters(module, ShardedState(ShardedOptions()).tensors(checkpoint), rank)
    else:
        tensors = Auto(AutoOptions()).tensors(checkpoint)
        load_weights(module, module.weight_map(), tensors, rank)  # type: ignore[operator]
    return module


@pytest.mark.parametrize("case", ["tied", "experts"])
def test_two_ranks_hold_what_they_would_cut_themselves(
    sources: dict[str, Path], tmp_path: Path, case: str
) -> None:
    source, out = sources[case], tmp_path / "out"
    assert convert(source, out, "--ranks", "2") == 0
    for number in range(2):
        rank = rank_of(number, 2)
        wanted = held(loaded(source, source, rank, is_divided=False))
        found = held(loaded(out, source, rank, is_divided=True))
        assert wanted.keys() == found.keys()
        assert all(torch.equal(wanted[name], found[name]) for name in wanted)


@pytest.mark.parametrize(("case", "to"), [("tied", "sharded_state"), ("transposed", "safetensors")])
def test_through_the_engine(sources: dict[str, Path], tmp_path: Path, case: str, to: str) -> None:
    assert convert(sources[case], tmp_path / "out", "--dtype", "float32", to=to) == 0
    found = []
    for model, load_format in ((sources[case], "auto"), (tmp_path / "out", to)):
        with LLM(model=str(model), load_format=load_format, use_tqdm_on_load=False) as llm:
            (answer,) = llm.generate([list(range(5, 25))], GREEDY, use_tqdm=False)
        found.append(list(answer.outputs[0].token_ids))
    assert found[0] == found[1]


def told(capsys: pytest.CaptureFixture[str], status: int, words: Sequence[str]) -> None:
    assert status == 2
    text = capsys.readouterr().err
    assert all(word in text for word in words), text


def test_the_number_of_ranks_is_checked(
    sources: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = sources["tied"], tmp_path / "out"
    assert convert(source, out, "--ranks", "2") == 0
    with pytest.raises(ConfigError, match="over 2 ranks, not over 1"):
        loaded(out, source, RankSpec(), is_divided=True)
    with pytest.raises(ConfigError, match="sharded_state") as caught:
        list(Auto(AutoOptions()).tensors(Checkpoint(path=str(out))))
    assert "--load-format sharded_state" in str(caught.value.fix)
    (out / "model-rank-1-part-0.safetensors").unlink()
    with pytest.raises(ConfigError, match="over 2 ranks, not over 1"):
        loaded(out, source, RankSpec(), is_divided=True)
    told(capsys, convert(source, out), ["not an empty folder"])
    told(capsys, convert(source, tmp_path / "x", "--ranks", "2", to="safetensors"), ["--ranks"])
    told(capsys, convert(source, tmp_path / "x", to="pt"), ["--to", "read, not written"])


def test_parameters_that_do_not_fit_are_listed(sources: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    out = tmp_path / "out"
    assert convert(sources["tied"], out) == 0
    file = out / "model-rank-0-part-0.safetensors"
    tensors = load_file(file)
    changed = {**tensors, "model.norm.weight": torch.ones(5), "stray": torch.ones(1)}
    del changed["model.layers.1.mlp.down_proj.weight"]
    save_file(changed, file)
    with pytest.raises(ConfigError, match=r"(?s)2 missing.*1 unexpected: stray.*1 misfitting"):
        loaded(out, sources["tied"], RankSpec(), is_divided=True)


def test_parts_and_patterns(tmp_path: Path) -> None:
    from dovetail_plugins.load_formats._safetensors_write import write_parts

    tensors = {f"t{i}": torch.full((8,), float(i)) for i in range(6)}
    pattern = "mine.{part}.of.{rank}.safetensors"
    write_parts(
        lambda part: tmp_path / f"mine.{part}.of.0.safetensors",
        tensors.items(),
        {"ranks": "1"},
        part_bytes=70,
    )
    assert len(list(tmp_path.iterdir())) == 3
    own = ShardedState(ShardedOptions(pattern=pattern))
    found = dict(own.tensors(Checkpoint(path=str(tmp_path))))
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    (tmp_path / "mine.1.of.0.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"mine\.1\.of\.0\.safetensors is missing"):
        dict(own.tensors(Checkpoint(path=str(tmp_path))))
    for wrong in ("a.safetensors", "../{rank}-{part}", "{rank}{rank}{part}"):
        with pytest.raises(ConfigError, match=r"load_format\.pattern"):
            ShardedOptions(pattern=wrong)
