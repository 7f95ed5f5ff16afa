"""A checkpoint whose config, model and tokenizer are Python files that come with it.

The model is a decoder of two layers with rotations and grouped heads; the tokenizer has a token for
each character of its file. Needs torch and transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = """
from transformers import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=128, slope=0.5, **kwargs):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.max_position_embeddings = max_position_embeddings
        self.slope = slope
        super().__init__(**kwargs)
"""
PARTS = """
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def turned(x, positions):
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * rates
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class OwnAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling, self.is_causal = self.head_dim**-0.5, True
        kv = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x, mask, positions):
        shape = (*x.shape[:-1], -1, self.head_dim)
        made = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (one.view(shape).transpose(1, 2) for one in made)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        out, _ = attend(self, turned(q, positions), turned(k, positions), v, mask,
                        dropout=0.0, scaling=self.scaling)
        return self.o_proj(out.reshape(*x.shape[:-1], -1))
"""
MODEL = """
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .configuration_own import OwnConfig
from .parts_own import OwnAttention


class OwnLayer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.slope = config.slope
        self.attention = OwnAttention(config, layer_idx)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, 48)
        self.down = nn.Linear(48, config.hidden_size)

    def forward(self, x, mask, positions):
        x = x + self.attention(self.norm(x), mask, positions)
        return x + self.slope * self.down(torch.tanh(self.up(x)))


class OwnPreTrainedModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True


class OwnModel(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(OwnLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, use_cache=None,
                **kwargs):
        x = self.embed(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_causal_mask(self.config, x, attention_mask, None, position_ids=position_ids)
        for layer in self.layers:
            x = layer(x, mask, position_ids)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class OwnForCausalLM(OwnPreTrainedModel, GenerationMixin):
    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        out = self.model(input_ids, attention_mask, position_ids)
        return CausalLMOutputWithPast(logits=self.lm_head(out.last_hidden_state))
"""
TOKENIZER = """
import os

from transformers import PreTrainedTokenizer


class OwnTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"letters": "letters.txt"}

    def __init__(self, letters, **kwargs):
        with open(letters, encoding="utf-8") as file:
            self.letters = ["<s>", "</s>", *file.read()]
        super().__init__(bos_token="<s>", eos_token="</s>", **kwargs)

    @property
    def vocab_size(self):
        return len(self.letters)

    def get_vocab(self):
        return {letter: at for at, letter in enumerate(self.letters)}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.letters.index(token) if token in self.letters else 2

    def _convert_id_to_token(self, index):
        return self.letters[index]

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""
FILES = {
    "configuration_own.py": CONFIG,
    "modeling_own.py": MODEL,
    "parts_own.py": PARTS,
    "tokenization_own.py": TOKENIZER,
}
MAPS = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    "AutoTokenizer": ["tokenization_own.OwnTokenizer", None],
}
LETTERS = "".join(map(chr, range(32, 126)))


def write_own(folder: Path) -> Path:
    """Write settings, code and random weights; return the folder."""
    write_code(folder)
    save_weights(folder)
    return folder


def write_code(folder: Path, **config: Any) -> Path:
    """Write settings and code; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "letters.txt").write_text(LETTERS)
    settings = {
        "architectures": ["OwnForCausalLM"],
        "model_type": "own",
        "auto_map": MAPS,
        "vocab_size": 96,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "slope": 0.25,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(settings | config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OwnTokenizer"}))
    return folder


def save_weights(folder: Path) -> None:
    """Write random weights of the model's class."""
    import torch
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = own_model(folder)
        weights = {n: p.detach() + 0.2 * torch.randn(p.shape) for n, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def own_model(folder: Path) -> Any:
    """Return a model of the class with first values, made by transformers alone."""
    from dovetail.config.checkpoint.code_files import read_code
    from dovetail_plugins.checkpoint_code import load_class

    code = read_code(folder)
    fields = json.loads((folder / "config.json").read_text())
    config = load_class(code, "AutoConfig")(**fields)
    return load_class(code, "AutoModelForCausalLM")._from_config(config, attn_implementation="sdpa")
