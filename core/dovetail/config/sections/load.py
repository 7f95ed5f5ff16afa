"""LoadConfig: where weights come from and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import flag


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    "Weights."

    load_format: str = flag("auto", kind="load_format", help="file format of the weights")
    download_dir: str | None = flag(
        None, help="folder for files fetched from the hub", default_note="the hub's cache"
    )
    use_modelscope: bool = flag(
        False, help="fetch models from ModelScope instead of the Hugging Face hub"
    )
    model_dir: tuple[str, ...] = flag(
        (),
        help="folders of models, each of which can be named by its path inside",
        metavar="FOLDER",
    )
    ignore_patterns: tuple[str, ...] = flag(
        ("original/**/*",), help="glob patterns of weight files to leave out", metavar="GLOB"
    )
    mmproj: str | None = flag(
        None,
        metavar="FILE",
        words={"none": ""},
        help="projector of a GGUF model that takes images or sound; --no-mmproj for none",
        default_note="a fitting one next to the model",
    )
    model_loader_extra_config: Mapping[str, Any] = flag(
        {}, help="options of the chosen load format"
    )
    weight_cache: bool = flag(
        True, help="keep packed weights on disk, where a later start maps them"
    )
    weight_cache_bytes: int = flag(
        64 * 2**30, ge=0, unit="bytes", help="disk space for packed weights; the oldest are removed"
    )
    use_tqdm_on_load: bool = flag(True, help="show a progress bar while weights load")
    safetensors_load_strategy: str = flag(
        "lazy",
        kind="safetensors_load_strategy",
        help="whether safetensors files are mapped (lazy) or read whole (eager)",
    )
    pt_load_map_location: Mapping[str, Any] = flag(
        {"*": "cpu"},
        key="*",
        metavar="DEVICE|JSON",
        help="device to which torch.save files are read: one for all tensors, or a map from the "
        "device that a file names; as in torch.load, devices outside the map are kept",
        default_note="cpu",
    )
