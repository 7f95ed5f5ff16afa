"""Random checkpoints of models with an encoder beside a decoder, with a tiny tokenizer. Needs
transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer

IDS = {
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "decoder_start_token_id": 2,
}
T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
SPEECH = {
    **{key: value for key, value in BART.items() if key != "max_position_embeddings"},
    "num_mel_bins": 8,
    "max_source_positions": 50,
    "max_target_positions": 128,
}
SPEECH_WORDS = (
    *("<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
    *(f"<|{i * 0.02:.2f}|>" for i in range(51)),
)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "T5ForConditionalGeneration": ("t5", T5),
    "t5-1.1": ("t5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "MT5ForConditionalGeneration": ("mt5", T5),
    "UMT5ForConditionalGeneration": ("umt5", T5),
    "BartForConditionalGeneration": ("bart", BART),
    "MBartForConditionalGeneration": ("mbart", {**BART, "scale_embedding": True}),
    "PegasusForConditionalGeneration": ("pegasus", BART),
    "MarianMTModel": ("marian", {**BART, "scale_embedding": True}),
    "WhisperForConditionalGeneration": ("whisper", SPEECH),
}
CLASSES = {"t5-1.1": "T5ForConditionalGeneration"}


def write_encoder_decoder(folder: Path, name: str) -> Any:
    """Write a checkpoint; return transformers' model of it."""
    import torch
    import transformers

    model_type, fields = FAMILIES[name]
    size = VOCAB_SIZE + len(SPEECH_WORDS) if model_type == "whisper" else VOCAB_SIZE
    config = transformers.AutoConfig.for_model(model_type, **{**IDS, "vocab_size": size, **fields})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, CLASSES.get(name, name))(config)
    randomize(model, seed=len(name))
    for module in model.modules():
        if hasattr(module, "create_weight"):  # positions that no checkpoint has
            module.weight.data.copy_(module.create_weight())
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.data.normal_(generator=torch.Generator().manual_seed(2))
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    if model_type == "whisper":
        _add_speech_words(folder)
    return model.eval()


def _add_speech_words(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPEECH_WORDS])
    tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((folder / name).read_text())
        settings["decoder_start_token_id"] = VOCAB_SIZE
        (folder / name).write_text(json.dumps(settings))
