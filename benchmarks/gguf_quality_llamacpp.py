"""GGUF files as llama.cpp's own quantizer writes them, for benchmarks.gguf_quality.

`python -m benchmarks.gguf_quality_llamacpp JOB.json` loads a libllama.so in a process of its own
and uses its C API: https://github.com/ggml-org/llama.cpp/blob/master/include/llama.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Importance(ctypes.Structure):
    """llama_model_imatrix_data: a matrix's name and what its inputs count, expert by expert."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("size", ctypes.c_size_t),
    ]


class Params(ctypes.Structure):
    """llama_model_quantize_params; what newer versions add at the end is left as they set it."""

    _fields_ = [
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int32),
        ("output_tensor_type", ctypes.c_int32),
        ("token_embedding_type", ctypes.c_int32),
        *(
            (name, ctypes.c_bool)
            for name in ("allow_requantize", "quantize_output_tensor", "only_copy", "pure",
                         "keep_split", "dry_run")
        ),
        ("imatrix", ctypes.POINTER(Importance)),
        ("rest", ctypes.c_uint64 * 16),
    ]  # fmt: skip


def library(path: str) -> ctypes.CDLL:
    """Return libllama."""
    llama = ctypes.CDLL(path)
    llama.llama_model_quantize_default_params.restype = Params
    llama.llama_model_quantize.restype = ctypes.c_uint32
    return llama


def importances(path: str) -> tuple[Any, list[np.ndarray]]:
    """Return a matrix's mean squares by name, as the library takes them, and their memory."""
    import gguf

    tensors = {one.name: one.data for one in gguf.GGUFReader(path).tensors}
    names = [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]
    means = [
        np.ascontiguousarray(tensors[f"{name}.in_sum2"] / tensors[f"{name}.counts"], np.float32)
        for name in names
    ]
    entries = (Importance * (len(names) + 1))()
    for entry, name, mean in zip(entries, names, means, strict=False):
        entry.name, entry.size = name.encode(), mean.size
        entry.data = mean.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries, means


def quantize(llama: ctypes.CDLL, job: dict[str, Any], file: dict[str, Any]) -> None:
    """Write one file. Raises: SystemExit"""
    params = llama.llama_model_quantize_default_params()
    params.nthread, params.ftype = job["threads"], file["file_type"]
    memory = importances(file["imatrix"]) if file.get("imatrix") else None
    if memory is not None:
        params.imatrix = memory[0]
    words = (job["source"].encode(), file["out"].encode())
    if llama.llama_model_quantize(*words, ctypes.byref(params)):
        raise SystemExit(f"llama.cpp cannot write {file['out']}")


def main() -> int:
    """Write the files of a job."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    llama = library(job["library"])
    silent = SILENT(lambda level, text, data: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    for file in job["files"]:
        quantize(llama, job, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
