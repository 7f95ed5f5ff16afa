"""Tiny checkpoints of VITS with real tokenizers, and the sound that transformers makes of texts."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "ffn_dim": 24, "flow_size": 16,
    "spectrogram_bins": 9, "duration_predictor_filter_channels": 16,
    "upsample_initial_channel": 16, "upsample_rates": (4, 4), "upsample_kernel_sizes": (8, 8),
    "posterior_encoder_num_wavenet_layers": 1, "prior_encoder_num_flows": 2,
    "prior_encoder_num_wavenet_layers": 2, "speaking_rate": 0.5,
}  # fmt: skip
VOICES: dict[str, Any] = {"num_speakers": 3, "speaker_embedding_size": 8, "sampling_rate": 22_050}


def write_vits(folder: Path, *, phonemize: bool = False, **more: Any) -> tuple[Any, Any]:
    """Write a checkpoint; return transformers' model and its tokenizer."""
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    folder.mkdir(exist_ok=True)
    words = ["_", *string.ascii_lowercase, " ", "'", "<unk>"]
    (folder / "vocab.json").write_text(json.dumps({one: at for at, one in enumerate(words)}))
    tokenizer = VitsTokenizer(
        str(folder / "vocab.json"), pad_token="_", unk_token="<unk>", phonemize=phonemize
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = VitsModel(VitsConfig(vocab_size=len(words), **(SIZES | more)))
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.1)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return model.eval(), tokenizer


def sound_of(model: Any, tokenizer: Any, text: str, seed: int, **how: Any) -> np.ndarray:
    """Return transformers' samples of a text. Shapes: [S]"""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        found: np.ndarray = model(**tokenizer(text, return_tensors="pt"), **how).waveform[0].numpy()
    return found
