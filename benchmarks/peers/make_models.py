"""Random-weight models for the peers, in every peer's own format. Downloads nothing.

`python make_models.py OUT` writes OUT/S (Qwen3-0.6B layers, 32000 tokens of vocabulary, tied) and
OUT/T (a Llama of 33 M parameters) as Hugging Face checkpoints in bfloat16, with a byte-level BPE
trained on the running Python's standard library, and from them GGUF, OpenVINO and CTranslate2
files. Seeds are fixed and what exists is kept. Run it where torch, transformers, gguf, ctranslate2
and optimum-intel are installed; a format whose package is missing is left out with one line.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCAB = 32000
CORPUS_CHARS = 24_000_000
SPECIALS = ["<|endoftext|>", "<|user|>", "<|assistant|>"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
GGUF_TYPES = ("f16", "bf16", "q8_0", "q4_0")
OPENVINO_TYPES = ("fp16", "int8", "int4")
CTRANSLATE2_TYPES = ("int8", "int8_float32", "float32")  # on a CPU the first two compute alike
SHAPES: dict[str, dict[str, Any]] = {
    "S": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
    },
    "T": {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1280,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-5,
    },
}


def corpus(limit_chars: int = CORPUS_CHARS) -> Iterator[str]:
    """Yield the sources of the standard library, in order of path, up to a limit."""
    root = Path(sysconfig.get_paths()["stdlib"])
    num_chars = 0
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        text = path.read_text("ascii", errors="ignore")
        yield text
        num_chars += len(text)
        if num_chars > limit_chars:
            return


def train_bpe(texts: Iterator[str], vocab_size: int) -> Any:
    """Return a byte-level BPE (tokenizers.Tokenizer) trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        show_progress=False,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_tokenizer() -> Any:
    """Return a transformers tokenizer around a freshly trained BPE."""
    from transformers import PreTrainedTokenizerFast

    bpe = train_bpe(corpus(), VOCAB)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=SPECIALS[0], pad_token=SPECIALS[0]
    )
    fast.chat_template = TEMPLATE
    return fast


def write_checkpoint(name: str, folder: Path, tokenizer: Any) -> None:
    """Write one model with random bfloat16 weights and the tokenizer beside it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(SHAPES[name])
    config = AutoConfig.for_model(
        shape.pop("model_type"),
        **shape,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(name, sum(p.numel() for p in model.parameters()), "parameters", flush=True)


def write_gguf(checkpoint: Path) -> None:
    """Write the GGUF files beside the checkpoint."""
    from gguf_file import write_gguf as write_one

    for kind in GGUF_TYPES:
        target = checkpoint.with_name(f"{checkpoint.name}-{kind}.gguf")
        if not target.exists():
            write_one(checkpoint, target, kind)
            print(target.name, target.stat().st_size, flush=True)


def write_openvino(checkpoint: Path) -> None:
    """Export through optimum's own command, which also converts the tokenizer."""
    command = Path(sys.executable).with_name("optimum-cli")
    if not command.exists():
        raise ModuleNotFoundError("no optimum-cli beside this python")
    for kind in OPENVINO_TYPES:
        target = checkpoint.with_name(f"{checkpoint.name}-openvino-{kind}")
        if not (target / "openvino_model.xml").exists():
            arguments = ["export", "openvino", "--model", str(checkpoint), str(target)]
            arguments += ["--task", "text-generation-with-past", "--weight-format", kind]
            subprocess.run([str(command), *arguments], check=True)
            print(target.name, flush=True)


def write_ctranslate2(checkpoint: Path) -> None:
    """Convert with CTranslate2's own converter, which wants a BOS token to be named."""
    from ctranslate2.converters import TransformersConverter

    for kind in CTRANSLATE2_TYPES:
        target = checkpoint.with_name(f"{checkpoint.name}-ctranslate2-{kind}")
        if not (target / "model.bin").exists():
            shutil.rmtree(target, ignore_errors=True)
            TransformersConverter(str(checkpoint)).convert(str(target), quantization=kind)
            print(target.name, flush=True)


WRITERS = {"gguf": write_gguf, "openvino": write_openvino, "ctranslate2": write_ctranslate2}


def main() -> None:
    """Write what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--formats", nargs="*", default=list(WRITERS), choices=list(WRITERS))
    arguments = parser.parse_args()
    missing = [n for n in arguments.models if not (arguments.out / n / "config.json").exists()]
    tokenizer = train_tokenizer() if missing else None
    for name in missing:
        write_checkpoint(name, arguments.out / name, tokenizer)
    for name in arguments.models:
        for kind in arguments.formats:
            try:
                WRITERS[kind](arguments.out / name)
            except (ImportError, TypeError, subprocess.CalledProcessError) as error:
                print(f"{kind} of {name} left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
