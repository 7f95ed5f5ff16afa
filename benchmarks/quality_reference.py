"""The reference of benchmarks.quality: transformers in float32, and the text that is scored.

`python -m benchmarks.quality_reference JOB.json` dequantizes a GGUF file with transformers' own
reader (which uses the package `gguf`), or loads a folder, writes the logprobs of all windows into
one file, and the weights as safetensors folders in the types asked for. Nothing of dovetail reads
weights here; its GGUF tokenizer gives the ids, which every engine is handed as they are.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality_figures import CHUNK, Reference, log_softmax

WINDOW = 512
TOPICS = (
    "execmodel",
    "attribute-access",
    "import",
    "objects",
    "customization",
    "calls",
    "try",
    "typesmapping",
)
"""Pages of the language reference in every Python (`pydoc_data.topics`); each gives one window."""
CALIBRATION = ("types", "compound", "strings", "debugger", "comparisons", "assignment")
"""Pages that methods with calibration look at; none of them is scored."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "fp16"}


def topics(names: Sequence[str]) -> list[str]:
    """Return pages of Python's language reference, white space made even."""
    from pydoc_data.topics import topics as pages

    return [" ".join(pages[name].split()) for name in names]


def windows_of(model: Path, count: int) -> tuple[list[list[int]], bool]:
    """Return the first tokens of each text, and whether a token begins every text."""
    from dovetail.config.config import Config
    from dovetail.config.resolve import resolve
    from dovetail.engine.client.requests.input_processor import load_tokenizer

    tokenizer: Any = load_tokenizer(resolve(Config.from_fields({"model": str(model)})))
    windows = [tokenizer.encode(text)[:WINDOW] for text in topics(TOPICS[:count])]
    assert all(len(window) == WINDOW for window in windows), "a page is too short"
    plain = tokenizer.encode(topics(TOPICS[:1])[0], add_special_tokens=False)
    return windows, windows[0][0] != plain[0]


def load(model: Path) -> Any:
    """Return the model in float32, dequantized where it is a GGUF file."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if model.is_dir():
        return AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32).eval()
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(str(model.parent), gguf_file=model.name)
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(str(model), return_tensors=True, model_to_load=empty)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    missing, unknown = made.load_state_dict(read["tensors"], strict=False)
    assert set(missing) <= _tied(made) and not unknown, (missing, unknown)
    return made.eval()


def _tied(model: Any) -> set[str]:
    """Return the names of weights that are another's."""
    return set(model.all_tied_weights_keys) if model.config.tie_word_embeddings else set()


def write_logprobs(model: Any, reference: Reference, windows: Sequence[Sequence[int]]) -> None:
    """Fill the reference's file."""
    import torch

    found, row = reference.create(), 0
    for window in windows:
        with torch.inference_mode():
            logits = model(torch.tensor([window[:-1]])).logits[0]
        for part in logits.split(CHUNK):
            found[row : row + len(part)] = log_softmax(part.numpy())
            row += len(part)
    found.flush()


def write_weights(model: Any, source: Path, folder: Path, dtypes: Sequence[str]) -> None:
    """Write the weights in several types, each beside the tokenizer."""
    import torch

    state = model.state_dict()
    tied = _tied(model)
    for dtype in dtypes:
        out = folder / SHORT[dtype]
        wanted = getattr(torch, dtype)
        cast = {name: value.to(wanted) for name, value in state.items() if name not in tied}
        model.save_pretrained(out, state_dict=cast)
        settings = json.loads((out / "config.json").read_text(encoding="utf-8"))
        text = json.dumps({**settings, "dtype": dtype}, indent=1)
        (out / "config.json").write_text(text, encoding="utf-8")
        write_tokenizer(source, out)


def write_tokenizer(source: Path, out: Path) -> None:
    """Put a source's tokenizer into a folder."""
    if source.is_dir():
        for name in TOKENIZER_FILES:
            if (source / name).exists():
                shutil.copy(source / name, out)
        return
    from dovetail_plugins.gguf.vocabulary.read import read_tokenizer

    content, settings = read_tokenizer(source)
    (out / "tokenizer.json").write_text(content, encoding="utf-8")
    (out / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def main() -> int:
    """Do what the job says."""
    import torch

    logging.getLogger("transformers").setLevel(logging.ERROR)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"])
    source, out = Path(job["model"]), Path(job["out"])
    model = load(source)
    if job["does"] == "logprobs":
        windows, has_bos = windows_of(source, job["num_windows"])
        vocab_size = int(model.config.vocab_size)
        partial = Path(job["reference"] + ".partial")
        write_logprobs(model, Reference(partial, windows, vocab_size), windows)
        partial.rename(job["reference"])
        told = {"windows": windows, "has_bos": has_bos, "vocab_size": vocab_size}
        out.write_text(json.dumps(told), encoding="utf-8")
    else:
        write_weights(model, source, out, job["dtypes"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
