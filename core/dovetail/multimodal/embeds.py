"""Embeddings in prompts: tensors saved by safetensors or torch, in base64.

torch files are read without running code from them (`weights_only`), after a check of the archive's
content. Shapes are checked before values: a tensor of a few bytes may claim any size.
"""

from __future__ import annotations

import base64
import io
import pickletools
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load as load_safetensors

from dovetail.errors import RequestError
from dovetail.multimodal.base64_text import plain_base64

MAX_VALUES = 1 << 26
MAX_DIMENSIONS = 4
ARCHIVE = b"PK\x03\x04"
MAX_FILES = 64
MAX_PICKLE_BYTES = 1 << 16
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32)


def decode_embeddings(given: Mapping[str, str], max_bytes: int) -> dict[str, torch.Tensor]:
    """Return the tensors of base64 texts, by name. Blocks. Raises: RequestError"""
    try:
        texts = {name: plain_base64(text) for name, text in given.items()}
    except UnicodeEncodeError:
        raise _invalid("the embeddings are not in base64.") from None
    if sum(map(len, texts.values())) > max_bytes * 4 // 3 + 8:
        raise _invalid(f"the embeddings have more than {max_bytes} bytes.")
    tensors = {name: _tensor(text) for name, text in texts.items()}
    if not any(tensor.is_floating_point() for tensor in tensors.values()):
        raise _invalid("the embeddings must be float32, float16 or bfloat16.")
    return tensors


def _tensor(text: bytes) -> torch.Tensor:
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        raise _invalid("the embeddings are not in base64.") from None
    try:
        found = _saved(data) if data.startswith(ARCHIVE) else _safetensors(data)
    except RequestError:
        raise
    except Exception as error:  # damaged data: the readers' exceptions differ
        raise _invalid(
            f"the embeddings cannot be read ({type(error).__name__}).",
            "send one tensor as safetensors, or as torch.save writes it.",
        ) from None
    return _checked(found)


def _safetensors(data: bytes) -> Any:
    tensors = load_safetensors(data)
    if len(tensors) != 1:
        raise _invalid(f"one tensor is wanted, and the data hold {len(tensors)}.")
    return next(iter(tensors.values()))


def _saved(data: bytes) -> Any:
    """Return what torch.save wrote. Raises: RequestError for other archives"""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = archive.infolist()
        is_plain = all(file.compress_type == zipfile.ZIP_STORED for file in files)
        if not is_plain or len(files) > MAX_FILES or sum(f.file_size for f in files) > len(data):
            raise _invalid("the embeddings are in an archive that torch.save does not write.")
        pickles = [file for file in files if file.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
            raise _invalid("the embeddings are not one tensor.")
        _check_pickle(archive.read(pickles[0]))
    file = io.BytesIO(data)
    return torch.load(file, map_location="cpu", weights_only=True)


_REBUILD = frozenset(
    {"torch._utils _rebuild_tensor_v2", "collections OrderedDict",
     *(f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Long", "Int"))}
)  # fmt: skip


def _check_pickle(data: bytes) -> None:
    """Raise RequestError if a pickle names more than is needed to rebuild a tensor."""
    for code, argument, _ in pickletools.genops(data):
        if code.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4") or (
            code.name == "GLOBAL" and argument not in _REBUILD
        ):
            raise _invalid("the embeddings hold more than a tensor.")


def _checked(found: Any) -> torch.Tensor:
    """Return the tensor contiguous and detached. Raises: RequestError"""
    if not isinstance(found, torch.Tensor) or found.layout != torch.strided:
        raise _invalid("the embeddings are not one dense tensor.")
    if found.dtype not in (*FLOATS, *WHOLE):
        raise _invalid(f"embeddings of {found.dtype} are not supported.", "send float32.")
    if not 1 <= found.dim() <= MAX_DIMENSIONS or not 0 < found.numel() <= MAX_VALUES:
        raise _invalid(
            f"embeddings of shape {list(found.shape)} are not supported: 1 to {MAX_VALUES} values "
            f"in up to {MAX_DIMENSIONS} dimensions are."
        )
    if found.untyped_storage().nbytes() < found.numel() * found.element_size():
        raise _invalid("the embeddings claim more values than they hold.")
    if found.is_floating_point() and not bool(torch.isfinite(found).all()):
        raise _invalid("the embeddings hold NaN or infinite values.")
    return found.detach().contiguous()


def _invalid(what: str, fix: str | None = None) -> RequestError:
    return RequestError(what, fix=fix, code="media_invalid")
