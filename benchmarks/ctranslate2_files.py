"""Whisper checkpoints in CTranslate2's binary layout, written again in transformers' layout.

    python -m benchmarks.ctranslate2_files FOLDER OUT

FOLDER has `model.bin`, `config.json` and `tokenizer.json`, as faster-whisper reads them. OUT gets
safetensors and the settings that transformers and dovetail read; numbers are copied, never
converted.

Format (little-endian; CTranslate2's docs/model_spec.md and the file's own header): u32 version, a
text (u16 length with the zero behind it, bytes) that names the spec, u32 revision, u32 count of
variables. A variable: a text (its name), u8 rank, u32 sizes, u8 type, u32 bytes, the bytes. Then
u32 count of aliases: two texts each, the alias and what it stands for.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

WEIGHTS, CONFIG, TOKENIZER = "model.bin", "config.json", "tokenizer.json"
SPEC, VERSION = "WhisperSpec", 6
TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
"""NumPy's names of the types that Whisper's files have."""
WINDOW_S, FRAME_S, TIME_STEP_S = 30, 0.01, 0.02
NUM_TIMES = round(WINDOW_S / TIME_STEP_S) + 1
MAX_FIRST_TIME_INDEX = 50
Arrays = dict[str, np.ndarray]


class BadFile(Exception):
    """A file that is not what it should be: what, and where."""


def read_model(path: Path) -> Arrays:
    """Return a file's variables by name, aliases among them. Raises: BadFile"""
    with path.open("rb") as file:
        version, spec = _number(file, "I"), _text(file)
        if (version, spec) != (VERSION, SPEC):
            raise BadFile(f"{path}: {spec} of version {version}, not {SPEC} of {VERSION}")
        _number(file, "I")
        found = dict(_variables(file, path))
        for _ in range(_number(file, "I")):
            alias, name = _text(file), _text(file)
            found[alias] = found[name]
        if file.read(1):
            raise BadFile(f"{path}: something stands behind its end")
    return found


def _variables(file: BinaryIO, path: Path) -> Iterator[tuple[str, np.ndarray]]:
    for _ in range(_number(file, "I")):
        name = _text(file)
        shape = [_number(file, "I") for _ in range(_number(file, "B"))]
        kind, size = _number(file, "B"), _number(file, "I")
        if kind not in TYPES:
            raise BadFile(f"{path}: {name} is of type {kind}; there are {sorted(TYPES)}")
        data = file.read(size)
        if len(data) != size or size != np.dtype(TYPES[kind]).itemsize * math.prod(shape):
            raise BadFile(f"{path}: {name} has {len(data)} bytes for the shape {shape}")
        yield name, np.frombuffer(data, dtype=TYPES[kind]).reshape(shape)


def _number(file: BinaryIO, kind: str) -> int:
    data = file.read(struct.calcsize(f"<{kind}"))
    try:
        return int(struct.unpack(f"<{kind}", data)[0])
    except struct.error as error:
        raise BadFile(f"{file.name}: it ends in the middle of a number") from error


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).rstrip(b"\0").decode()


def weights(found: Mapping[str, np.ndarray]) -> Arrays:
    """Return the weights under transformers' names. Raises: BadFile for what it has no place for"""
    made: Arrays = {}
    for name, array in found.items():
        side, _, rest = name.partition("/")
        if array.ndim:  # numbers alone are settings
            made.update(_named(f"model.{side}", rest, array))
    tied = made.pop("proj_out.weight", None)
    if tied is None or not np.array_equal(tied, made["model.decoder.embed_tokens.weight"]):
        raise BadFile("the head is not the table of words")
    return made


ONCE = {
    "embeddings/weight": "embed_tokens.weight",
    "position_encodings/encodings": "embed_positions.weight",
    "layer_norm/gamma": "layer_norm.weight",
    "layer_norm/beta": "layer_norm.bias",
    **{f"conv{i}/{leaf}": f"conv{i}.{leaf}" for i in (1, 2) for leaf in ("weight", "bias")},
}
NORMS = {
    "self_attention/layer_norm": "self_attn_layer_norm",
    "attention/layer_norm": "encoder_attn_layer_norm",
    "ffn/layer_norm": "final_layer_norm",
}
LINEARS: dict[str, tuple[str, ...]] = {
    "self_attention/linear_0": tuple(f"self_attn.{one}_proj" for one in "qkv"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
"""What lies in one matrix there, one after another, and in several here."""


def _named(side: str, rest: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if rest == "projection/weight":
        yield "proj_out.weight", array
        return
    if rest in ONCE:
        yield f"{side}.{ONCE[rest]}", array
        return
    layer, _, inner = rest.partition("/")
    what, _, leaf = inner.rpartition("/")
    prefix = f"{side}.layers.{layer.removeprefix('layer_')}"
    if what in NORMS:
        yield f"{prefix}.{NORMS[what]}.{ {'gamma': 'weight', 'beta': 'bias'}[leaf] }", array
    elif what in LINEARS and leaf in ("weight", "bias"):
        names = LINEARS[what]
        for name, piece in zip(names, np.split(array, len(names)), strict=True):
            if name.endswith("k_proj") and leaf == "bias":  # keys have none in transformers
                if piece.any():
                    raise BadFile(f"{prefix}.{name} has a bias")
                continue
            yield f"{prefix}.{name}.{leaf}", piece
    else:
        raise BadFile(f"{side}/{rest} has no place in transformers' layout")


def settings(found: Mapping[str, np.ndarray], ids: Mapping[str, int]) -> dict[str, Any]:
    """Return transformers' config, from sizes and from the ids of special tokens."""
    num_words, size = found["decoder/embeddings/weight"].shape
    sides: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        layers = {one.split("/")[1] for one in found if one.startswith(f"{side}/layer_")}
        sides[f"{side}_layers"] = len(layers - {"layer_norm"})
        sides[f"{side}_attention_heads"] = int(found[f"{side}/num_heads"])
        inner = found[f"{side}/layer_0/ffn/linear_0/weight"].shape[0]
        sides[f"{side}_ffn_dim"] = inner
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
        "activation_function": "gelu",
        "vocab_size": num_words,
        "d_model": size,
        **sides,
        "num_hidden_layers": sides["encoder_layers"],
        "num_mel_bins": found["encoder/conv1/weight"].shape[1],
        "max_source_positions": len(found["encoder/position_encodings/encodings"]),
        "max_target_positions": len(found["decoder/position_encodings/encodings"]),
        **_common(ids),
        "torch_dtype": "float16",
    }


def _common(ids: Mapping[str, int]) -> dict[str, Any]:
    end = ids["<|endoftext|>"]
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
    }


def generation(told: Mapping[str, Any], ids: Mapping[str, int], max_length: int) -> dict[str, Any]:
    """Return transformers' generation config of CTranslate2's config."""
    languages = {text: one for text, one in ids.items() if one in set(told["lang_ids"])}
    return {
        **_common(ids),
        "alignment_heads": told["alignment_heads"],
        "begin_suppress_tokens": told["suppress_ids_begin"],
        "suppress_tokens": told["suppress_ids"],
        "is_multilingual": bool(languages),
        "lang_to_id": languages,
        "task_to_id": {one: ids[f"<|{one}|>"] for one in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "max_initial_timestamp_index": MAX_FIRST_TIME_INDEX,
        "max_length": max_length,
        "return_timestamps": False,
    }


def with_times(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer that knows the tokens of times, which lie behind all others."""
    known = {one["content"]: one for one in tokenizer["added_tokens"]}
    template = known["<|notimestamps|>"]
    first = template["id"] + 1
    times = (f"<|{i * TIME_STEP_S:.2f}|>" for i in range(NUM_TIMES))
    added = [{**template, "id": first + i, "content": text} for i, text in enumerate(times)]
    new = [one for one in added if one["content"] not in known]
    return {**tokenizer, "added_tokens": [*tokenizer["added_tokens"], *new]}


def convert(folder: Path, out: Path) -> None:
    """Write a checkpoint again. Mutates: the folder `out`. Raises: BadFile"""
    from safetensors.numpy import save_file

    found = read_model(folder / WEIGHTS)
    arrays = {name: np.ascontiguousarray(array) for name, array in weights(found).items()}
    tokenizer = with_times(json.loads((folder / TOKENIZER).read_text(encoding="utf-8")))
    ids = {one["content"]: one["id"] for one in tokenizer["added_tokens"]}
    config = settings(found, ids)
    told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    made = {
        CONFIG: config,
        TOKENIZER: tokenizer,
        "generation_config.json": generation(told, ids, config["max_target_positions"]),
        "preprocessor_config.json": _preprocessor(config),
        "tokenizer_config.json": {
            "tokenizer_class": "WhisperTokenizer",
            **{f"{one}_token": "<|endoftext|>" for one in ("bos", "eos", "unk", "pad")},
            "model_max_length": config["max_target_positions"],
        },
        "vocab.json": tokenizer["model"]["vocab"],
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (out / name).write_text(json.dumps(content), encoding="utf-8")
    pairs = tokenizer["model"]["merges"]
    lines = [one if isinstance(one, str) else " ".join(one) for one in pairs]
    (out / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    save_file(arrays, out / "model.safetensors", metadata={"format": "pt"})


def _preprocessor(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16_000,
        "hop_length": round(16_000 * FRAME_S),
        "chunk_length": WINDOW_S,
        "n_fft": 400,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Convert a folder."""
    given = [Path(one) for one in (sys.argv[1:] if words is None else words)]
    if len(given) != 2:
        print("usage: python -m benchmarks.ctranslate2_files FOLDER OUT", file=sys.stderr)
        return 2
    try:
        convert(*given)
    except BadFile as error:
        print(f"cannot be converted: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
