"""Random-weight models for the peers, in every peer's own format. Downloads nothing.

`python -m benchmarks.peers.make_models OUT` writes OUT/S (Qwen3-0.6B layers, 32000 tokens of
vocabulary, tied) and OUT/T (a Llama of 33 M parameters) as Hugging Face checkpoints in bfloat16,
and when it is asked for OUT/M, whose layers are Qwen3-30B-A3B's at half the width (128 experts, 8
of them a token; 954 M parameters; with `--formats` alone: `dovetail quantize` writes its GGUF),
with a byte-level BPE trained on the running Python's standard library, and from them GGUF, OpenVINO
and CTranslate2 files. Seeds are fixed and what exists is kept. Run it where torch, transformers,
gguf, ctranslate2 and optimum-intel are installed. A file that cannot be made does not stop those
after it: what failed is listed at the end, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
    "M": {
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 3072,
        "moe_intermediate_size": 384,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
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


def write_gguf(checkpoint: Path, kind: str, target: Path) -> None:
    """Write one GGUF file."""
    from benchmarks.peers.gguf_file import write_gguf as write_one

    write_one(checkpoint, target, kind)


def write_openvino(checkpoint: Path, kind: str, target: Path) -> None:
    """Export through optimum's own command, which also converts the tokenizer."""
    command = Path(sys.executable).with_name("optimum-cli")
    if not command.exists():
        raise ModuleNotFoundError("no optimum-cli beside this python")
    arguments = ["export", "openvino", "--model", str(checkpoint), str(target)]
    arguments += ["--task", "text-generation-with-past", "--weight-format", kind]
    subprocess.run([str(command), *arguments], check=True)


def write_ctranslate2(checkpoint: Path, kind: str, target: Path) -> None:
    """Convert with CTranslate2's own converter, and name a BOS token where it wrote none.

    CTranslate2 does not load a model whose BOS token is null; prompts of ids never use it.
    """
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(checkpoint)).convert(str(target), quantization=kind)
    config = target / "config.json"
    told = json.loads(config.read_text())
    if told.get("bos_token") is None:
        config.write_text(json.dumps(told | {"bos_token": SPECIALS[0]}, indent=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One peer's files: made by `write` from a checkpoint, one per kind.

    `suffix` comes after the kind; `proof` is the file of a folder that is written last.
    """

    write: Callable[[Path, str, Path], None]
    kinds: tuple[str, ...]
    stem: str = ""
    suffix: str = ""
    proof: str = ""

    def target(self, checkpoint: Path, kind: str) -> Path:
        """Return the file or folder of a kind, beside the checkpoint."""
        return checkpoint.with_name(f"{checkpoint.name}-{self.stem}{kind}{self.suffix}")


FORMATS = {
    "gguf": Format(write=write_gguf, kinds=GGUF_TYPES, suffix=".gguf"),
    "openvino": Format(
        write=write_openvino, kinds=OPENVINO_TYPES, stem="openvino-", proof="openvino_model.xml"
    ),
    "ctranslate2": Format(
        write=write_ctranslate2, kinds=CTRANSLATE2_TYPES, stem="ctranslate2-", proof="model.bin"
    ),
}


def write_formats(checkpoint: Path, formats: list[str]) -> list[str]:
    """Write every file of the formats that is not there; return what failed, and why.

    Mutates: the folder. What a failed try has left is removed, so that the next one starts afresh.
    """
    failed = []
    for name in formats:
        wanted = FORMATS[name]
        for kind in wanted.kinds:
            target = wanted.target(checkpoint, kind)
            if (target / wanted.proof).exists():
                continue
            remove(target)
            try:
                wanted.write(checkpoint, kind, target)
            except Exception as error:  # whatever one converter raises, the others go on
                remove(target)
                failed.append(f"{target.name}: {type(error).__name__}: {error}")
                print(f"FAILED {failed[-1]}", file=sys.stderr, flush=True)
            else:
                print(f"wrote {target.name}", flush=True)
    return failed


def remove(target: Path) -> None:
    """Remove a file or a folder, where it is there."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def main() -> int:
    """Write what is asked for and not there yet. Return 1 when something could not be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=["S", "T"], choices=list(SHAPES))
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    arguments = parser.parse_args()
    missing = [n for n in arguments.models if not (arguments.out / n / "config.json").exists()]
    tokenizer = train_tokenizer() if missing else None
    for name in missing:
        write_checkpoint(name, arguments.out / name, tokenizer)
    failed = []
    for name in arguments.models:
        failed += write_formats(arguments.out / name, arguments.formats)
    if failed:
        print(f"{len(failed)} not made:", *failed, sep="\n  ", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
