"""A model family in a package of its own needs no edit of core: the tutorial's, and an odd one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail_testing.tiny.models import write_tiny_tokenizer
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorials" / "add_a_model_family.md"
FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROMPT = [40, 77, 120, 9, 301, 15]
NEW_TOKENS = 12


def environment(packages: Path) -> dict[str, str]:
    """Return variables under which a new process finds what is installed in a folder."""
    paths = [str(packages), *(path for path in sys.path if path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def greedy_answer(model: Path, packages: Path) -> list[int]:
    """Return the tokens that `dovetail serve` draws after PROMPT."""
    request = {
        "prompt": PROMPT,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    serve = [str(model), "--port", "0", "--dtype", "float32", "--max-model-len", "64"]
    paths = {"PYTHONPATH": environment(packages)["PYTHONPATH"]}
    with ServerProcess(*serve, env=paths) as server, server.wait_ready().client() as client:
        reply = client.post("/v1/completions", json=request)
        assert reply.status_code == 200, reply.text
        return [int(token) for token in reply.json()["choices"][0]["token_ids"]]


def greedy_reference(logits: Any) -> list[int]:
    """Return what a function from all tokens to logits [T, V] draws after PROMPT."""
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            tokens.append(int(logits(tokens)[-1].argmax()))
    return tokens[len(PROMPT) :]


def change_config(model: Path, drops: Sequence[str], **changes: Any) -> None:
    file = model / "config.json"
    config = json.loads(file.read_text())
    kept = {key: value for key, value in config.items() if key not in drops}
    file.write_text(json.dumps(kept | changes))


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    import transformers

    files = dict(FILE.findall(PAGE.read_text()))
    assert list(files) == [
        "jais2_model/model.py", "jais2_model/facts.py", "pyproject.toml", "compare.py"
    ]  # fmt: skip
    package, installed = tmp_path / "package", tmp_path / "installed"
    (package / "jais2_model").mkdir(parents=True)
    (package / "jais2_model" / "__init__.py").touch()
    for name, text in files.items():
        (package / name).write_text(text)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(build, cwd=package, check=True, capture_output=True)
    (wheel,) = (package / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    compared = subprocess.run(
        [sys.executable, "compare.py"],
        cwd=package,
        env=environment(installed),
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("largest difference") == 2

    # As a hub checkpoint would leave them out; the usual defaults are others.
    change_config(package / "tiny", ["hidden_act", "attention_bias", "tie_word_embeddings"])
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        package / "tiny", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    wanted = greedy_reference(lambda tokens: reference(torch.tensor([tokens])).logits[0])
    assert greedy_answer(package / "tiny", installed) == wanted


def test_the_tutorials_defaults_are_those_of_transformers() -> None:
    import dataclasses

    from transformers import Jais2Config

    scope: dict[str, Any] = {}
    exec(dict(FILE.findall(PAGE.read_text()))["jais2_model/facts.py"], scope)  # noqa: S102
    ours = scope["JAIS2"].value.defaults
    theirs = {field.name: field.default for field in dataclasses.fields(Jais2Config)}
    assert ours == {name: theirs[name] for name in ours}


ODD_MODEL = '''
"""Odd: the decoder with a table of positions in place of rotations."""

from torch import nn

from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderForCausalLM, DecoderModel
from dovetail.layers.embedding import PositionEmbedding


class OddModel(DecoderModel):
    def __init__(self, context, name, config, layer_class):
        super().__init__(context, name, config, layer_class)
        model = context.model
        self.embed_positions = PositionEmbedding(
            context, model.max_position_tokens, model.hidden_size
        )

    def build_rotaries(self, context, layer_types):
        return nn.ModuleDict()

    def embed(self, token_ids, positions):
        return self.embed_tokens(token_ids) + self.embed_positions(positions)


class OddForCausalLM(DecoderForCausalLM):
    info = Info(summary="odd")
    model_class = OddModel
'''
ODD_FACTS = '''
"""Facts of Odd."""

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value

ODD = Value(
    summary="odd",
    value=ModelFacts(
        positions="learned",
        attribute_map={
            "hidden_size": "width",
            "num_hidden_layers": "depth",
            "num_attention_heads": "heads",
            "intermediate_size": "inner_width",
        },
        defaults={"heads": 4, "vocab_size": 320, "rms_norm_eps": 0.01, "eos_token_id": 1},
    ),
)
'''
WIDTH, DEPTH, HEADS, INNER, VOCAB, POSITIONS, EPS = 32, 2, 4, 48, 320, 64, 0.01


def odd_weights() -> dict[str, torch.Tensor]:
    """Return random weights of the odd architecture."""
    shapes = {"model.embed_positions.weight": (POSITIONS, WIDTH), "model.norm.weight": (WIDTH,)}
    shapes |= {f"{name}.weight": (VOCAB, WIDTH) for name in ("model.embed_tokens", "lm_head")}
    for layer in (f"model.layers.{i}" for i in range(DEPTH)):
        shapes |= {f"{layer}.self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"}
        shapes |= {f"{layer}.mlp.{n}_proj.weight": (INNER, WIDTH) for n in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (WIDTH, INNER)
        shapes |= {f"{layer}.{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")}
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def odd_logits(weights: dict[str, torch.Tensor], tokens: Sequence[int]) -> torch.Tensor:
    """Return the logits of the odd architecture in plain torch, [T, V]."""
    from torch.nn import functional

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, (WIDTH,), weights[f"{name}.weight"], EPS)

    count = len(tokens)
    x = weights["model.embed_tokens.weight"][list(tokens)]
    x = x + weights["model.embed_positions.weight"][:count]
    for layer in (f"model.layers.{i}" for i in range(DEPTH)):
        h = norm(x, f"{layer}.input_layernorm")
        q, k, v = (
            (h @ weights[f"{layer}.self_attn.{n}_proj.weight"].T).view(count, HEADS, -1)
            .transpose(0, 1)
            for n in "qkv"
        )  # fmt: skip
        a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + a.transpose(0, 1).flatten(1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        h = norm(x, f"{layer}.post_attention_layernorm")
        gate, up, down = (weights[f"{layer}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        x = x + (functional.silu(h @ gate.T) * (h @ up.T)) @ down.T
    return norm(x, "model.norm") @ weights["lm_head.weight"].T


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a checkpoint of the odd architecture and the folder its package is installed in."""
    model, packages = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("packages")
    (packages / "odd_model.py").write_text(ODD_MODEL)
    (packages / "odd_facts.py").write_text(ODD_FACTS)
    about = packages / "odd_model-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-model\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[dovetail.model]\nOddForCausalLM = odd_model:OddForCausalLM\n"
        "[dovetail.model_type]\nodd = odd_facts:ODD\n"
    )
    save_file(odd_weights(), model / "model.safetensors", metadata={"format": "pt"})
    write_tiny_tokenizer(model)
    config = {
        "architectures": ["OddForCausalLM"],
        "model_type": "odd",
        "width": WIDTH,
        "depth": DEPTH,
        "inner_width": INNER,
        "max_position_embeddings": POSITIONS,
    }
    (model / "config.json").write_text(json.dumps(config))
    return model, packages


def test_an_architecture_that_nobody_knows_is_served(odd: tuple[Path, Path]) -> None:
    weights = odd_weights()
    wanted = greedy_reference(lambda tokens: odd_logits(weights, tokens))
    assert len(set(wanted)) > 3, "an answer this plain would hide mistakes"
    assert greedy_answer(*odd) == wanted


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rope-theta", "10000"], "odd models have no rotary embedding"),
        (
            ["--max-model-len", "65", "--allow-long-max-model-len"],
            "only 64 positions",
        ),
    ],
)
def test_its_facts_decide_what_flags_mean(
    flags: list[str], says: str, odd: tuple[Path, Path]
) -> None:
    model, packages = odd
    told = subprocess.run(
        [sys.executable, "-m", "dovetail", "config", "show", str(model), *flags],
        env=environment(packages),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2, told.stderr
    assert says in told.stderr
