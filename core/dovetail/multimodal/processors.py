"""Loads transformers' processors, even without torchvision.

transformers refuses to create some processors without torchvision, though only their video part
needs it: such a processor is created here without that part.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.media_tokens import PROCESSOR
from dovetail.config.checkpoint.model_facts import processors
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.registry.files import import_target

FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")
"""Files in which checkpoints name their processor's class; the first that does counts."""
ARGUMENTS = {"image": "images", "video": "videos", "audio": "audio"}
"""Kind -> the argument of transformers' processors."""
TEXT_FIELDS = (
    *("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"),
    *("text_replacement_offsets", "video_metadata"),
)
"""Fields that processors return in addition to features."""
USUAL_RATE_HZ = 16000
"""The sampling rate of processors that do not have one."""
VIDEO_PART = "video_processor"
WITHOUT_VIDEO = {"SmolVLMProcessor": "Idefics3Processor"}
"""Processors that equal another one except for videos, which take one more package."""


def processor_folder(model: ModelSpec) -> str:
    """Return the folder of a checkpoint's processor: its own, or one written from its settings."""
    if PROCESSOR not in model.whole_config:
        return model.path
    return str(import_target(processors()[PROCESSOR])(model.path, model.whole_config))


def load_processor(folder: str | Path, model_type: str) -> Any:
    """Return the processor of a checkpoint. Raises: whatever transformers raises"""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = _named(Path(folder)) or PROCESSOR_MAPPING_NAMES.get(model_type)
    own = import_target(processors()[name]) if name in processors() else None
    if own is not None and own.is_wanted():
        return own.from_pretrained(folder)
    modules: dict[str, str] = getattr(transformers, "_class_to_module", {})
    if name not in modules or importlib.util.find_spec("torchvision") is not None:
        return transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    name = WITHOUT_VIDEO.get(name, name)
    module = modules[name].rpartition(".")[2].removeprefix("processing_")
    return processor_class(module, name).from_pretrained(folder)


def processor_class(module: str, name: str) -> type[Any]:
    """Return a processor class of transformers' models.MODULE, without its video part."""
    found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    return _without_video(getattr(found, name))


def _named(folder: Path) -> str | None:
    """Return the class that a checkpoint's files name."""
    for file in FILES:
        path = folder / file
        if path.is_file():
            name = read_json(path).get("processor_class")
            if isinstance(name, str):
                return name
    return None


def _without_video(processor_class: type[Any]) -> type[Any]:
    """Return a copy of a processor class without its video part."""
    from transformers import ProcessorMixin

    names = processor_class.get_attributes()
    if VIDEO_PART not in names:
        return processor_class
    place = names.index(VIDEO_PART)
    others = [name for name in names if name != VIDEO_PART]

    class Parts(ProcessorMixin):
        """Base class of the copy: takes the parts of `made` except the one for videos."""

        def __init__(self, *parts: Any, **more: Any) -> None:
            more |= zip(names, parts, strict=False)
            more.pop(VIDEO_PART, None)
            self.video_processor = more.get("image_processor")  # some read its settings as well
            super().__init__(**more)

        @classmethod
        def get_attributes(cls) -> list[str]:
            return others

        @classmethod
        def from_args_and_dict(cls, args: Any, *rest: Any, **more: Any) -> Any:
            whole = (*args[:place], None, *args[place:])
            return super().from_args_and_dict(whole, *rest, **more)

    return type(processor_class.__name__, (processor_class, Parts), {})


def rate_of(processor: Any) -> int:
    """Return a processor's sampling rate in samples per second."""
    names = ("feature_extractor", "audio_processor")
    rates = (getattr(getattr(processor, name, None), "sampling_rate", 0) for name in names)
    return next((int(rate) for rate in rates if rate), USUAL_RATE_HZ)
