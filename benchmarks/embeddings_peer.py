"""One engine of `benchmarks.embeddings`: reads lines of JSON, answers with seconds or vectors.

python -m benchmarks.embeddings_peer NAME FOLDER [FLAGS]
python -m benchmarks.embeddings_peer export FOLDER  # what the ONNX and OpenVINO peers read
python -m benchmarks.embeddings_peer bert-base REAL FOLDER  # random weights of that shape
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
Embed = Callable[[list[str]], np.ndarray]
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))
EXPORTS = ("model.onnx", "model-int8.onnx", "model.xml")


def exported(folder: Path) -> Path:
    """Return the folder beside the model where its other forms lie."""
    place = folder.parent / f"{folder.name}-exported"
    place.mkdir(exist_ok=True)
    return place


def export(folder: Path) -> None:
    """Write the model as ONNX, as ONNX with int8 products, and for OpenVINO."""
    import openvino
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import AutoModel

    class Hidden(torch.nn.Module):
        """The model by the names of its inputs, which an export does not keep."""

        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            """Shapes: [B, T] each -> [B, T, E]"""
            found = self.model(input_ids=ids, attention_mask=mask, token_type_ids=types)
            return found.last_hidden_state

    model = Hidden()
    ids = torch.ones(2, 16, dtype=torch.long)
    example = {name: ids for name in ("input_ids", "attention_mask", "token_type_ids")}
    place = exported(folder)
    plain = str(place / "model.onnx")
    axes = {name: {0: "batch", 1: "tokens"} for name in (*example, "hidden")}
    torch.onnx.export(
        model, tuple(example.values()), plain, input_names=list(example), output_names=["hidden"],
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip
    quantize_dynamic(plain, str(place / "model-int8.onnx"), weight_type=QuantType.QInt8)
    openvino.save_model(
        openvino.convert_model(plain), str(place / "model.xml"), compress_to_fp16=False
    )


def bert_base(real: Path, folder: Path) -> None:
    """Write a folder as `real`, with random weights in the shape of BERT-base."""
    import torch
    from transformers import BertConfig, BertModel

    shutil.copytree(real, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    pooling = folder / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text()) | {"word_embedding_dimension": 768}
    pooling.write_text(json.dumps(settings))
    torch.manual_seed(0)
    BertModel(BertConfig()).save_pretrained(folder)


def dovetail(folder: Path, flags: list[str]) -> Embed:
    """Return dovetail's vectors of texts, by the offline class."""
    from dovetail.llm.llm import LLM

    fields: dict[str, Any] = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(flags[::2], flags[1::2], strict=True)
    }
    llm = LLM(str(folder), max_model_len=512, num_threads=THREADS, **fields)

    def embed(texts: list[str]) -> np.ndarray:
        found = llm.encode(texts, use_tqdm=False, truncate_prompt_tokens=-1)
        return np.stack([one.data for one in found])

    return embed


def sentence_transformers(folder: Path, flags: list[str]) -> Embed:
    """Return the vectors of sentence-transformers, by torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 512

    def embed(texts: list[str]) -> np.ndarray:
        return model.encode(texts, batch_size=BATCH, normalize_embeddings=True)

    return embed


def by_batches(folder: Path, run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> Embed:
    """Return vectors by mean pooling of what `run` computes, in batches of like length."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)

    def embed(texts: list[str]) -> np.ndarray:
        ids = [found.ids for found in tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        vectors: list[np.ndarray] = [np.empty(0)] * len(ids)
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            longest = max(len(ids[i]) for i in some)
            tokens = np.zeros((len(some), longest), dtype=np.int64)
            mask = np.zeros_like(tokens)
            for row, i in enumerate(some):
                tokens[row, : len(ids[i])], mask[row, : len(ids[i])] = ids[i], 1
            inputs = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": tokens * 0}
            weights = mask[:, :, None].astype(np.float32)
            means = (run(inputs) * weights).sum(1) / weights.sum(1)
            means /= np.linalg.norm(means, axis=1, keepdims=True)
            for row, i in enumerate(some):
                vectors[i] = means[row]
        return np.stack(vectors)

    return embed


def onnxruntime(folder: Path, flags: list[str], file: str = "model.onnx") -> Embed:
    """Return the vectors of ONNX Runtime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(
        str(exported(folder) / file), options, providers=["CPUExecutionProvider"]
    )
    return by_batches(folder, lambda inputs: session.run(None, inputs)[0])


def onnxruntime_int8(folder: Path, flags: list[str]) -> Embed:
    """Return the vectors of ONNX Runtime with dynamic int8 products."""
    return onnxruntime(folder, flags, "model-int8.onnx")


def openvino(folder: Path, flags: list[str], *, is_int8: bool = False) -> Embed:
    """Return the vectors of OpenVINO, computed in float32."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    model = core.read_model(str(exported(folder) / EXPORTS[2]))
    if is_int8:
        model = _calibrated(folder, model)
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()

    def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
        return request.infer(inputs)[compiled.output(0)]

    return by_batches(folder, run)


def openvino_int8(folder: Path, flags: list[str]) -> Embed:
    """Return the vectors of OpenVINO with int8 products, calibrated by NNCF."""
    return openvino(folder, flags, is_int8=True)


def _calibrated(folder: Path, model: Any) -> Any:
    """Return the model quantized as NNCF does it for transformers."""
    import nncf
    from tokenizers import Tokenizer

    from benchmarks.embeddings import texts

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)

    def inputs(text: str) -> dict[str, np.ndarray]:
        tokens = np.array([tokenizer.encode(text).ids], dtype=np.int64)
        return {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "token_type_ids": tokens * 0,
        }

    data = nncf.Dataset(texts(64, 200), inputs)
    return nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=64)


ENGINES: dict[str, Callable[[Path, list[str]], Embed]] = {
    "dovetail": dovetail,
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "onnxruntime-int8": onnxruntime_int8,
    "openvino": openvino,
    "openvino-int8": openvino_int8,
}


def main() -> None:
    """Load an engine, then answer line by line."""
    name, folder, *flags = sys.argv[1:]
    if name == "bert-base":
        bert_base(Path(folder), Path(flags[0]))
        return
    if name == "export":
        export(Path(folder))
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log
    embed = ENGINES[name](Path(folder), flags)
    for line in sys.stdin:
        question = json.loads(line)
        started_s = time.perf_counter()
        vectors = embed(question["texts"])
        answer: dict[str, Any] = {"seconds": time.perf_counter() - started_s}
        if question.get("tells"):
            answer["vectors"] = vectors.tolist()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
