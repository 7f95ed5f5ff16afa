"""A random checkpoint, with its processor, of any model that transformers has with images or sound.

The config is shrunk by `tiny_configs`; the processor is the class's own with its own defaults, over
the tiny tokenizer with the special tokens that its source names. Needs transformers and Pillow.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dovetail.config.sections.convert import merge_deep
from dovetail.errors import ConfigError
from dovetail.multimodal.processors import VIDEO_PART, processor_class
from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer
from support.tiny_configs import MOST_PARAMETERS, Json, tiny_config
from support.tiny_media import MEDIA_FAMILIES, SOUND_FAMILIES, write_media_checkpoint
from support.tiny_whole_settings import OWN, Own

WORD = re.compile(r"""["'](<[^"'\s{}]{2,40}>|\[[A-Z_]+\])["']""")
"""A special token in a processor's source."""
ATTRIBUTE = re.compile(r"tokenizer,? ?(?:\.|\")(\w+_token)\b|tokenizer\.(\w+_token)_id\b")
"""A special token that a processor asks its tokenizer for by name."""
HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
POSITIONS = 8192
SAVED_AS_NAMED = ("qianfan_ocr",)
"""Types for which transformers writes names that no published checkpoint has."""
USUAL = ("bos_", "eos_", "pad_", "unk_", "add_")
"""Starts of the names of what any tokenizer has."""


def write_whole(
    folder: str | Path, model_type: str, architecture: str, *, is_bare: bool = False
) -> Path:
    """Write config, weights, tokenizer and, if not `is_bare`, processor; return the folder.

    Raises: ConfigError where transformers' own classes cannot be made small
    """
    try:
        if architecture in {**MEDIA_FAMILIES, **SOUND_FAMILIES}:
            return write_media_checkpoint(folder, architecture)
        return _write(Path(folder), model_type, architecture, is_bare=is_bare)
    except Exception as error:  # whatever transformers' own classes raise
        told = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"no small checkpoint of {model_type}: {type(error).__name__}: {told}"
        ) from error


def _write(folder: Path, model_type: str, architecture: str, *, is_bare: bool) -> Path:
    import torch
    import transformers

    own = OWN.get(model_type, Own())
    made = _processor_class(own.like or model_type)
    tokenizer = _tokenizer(folder, made, own)
    processor: Any = SimpleNamespace(tokenizer=tokenizer, **own.words)
    if not is_bare:
        processor = _processor(made, own.like or model_type, tokenizer, own)
    config = whole_config(model_type)
    config.architectures = [architecture]
    _fit(config, processor, len(tokenizer), own)
    kind = getattr(transformers, architecture)
    with torch.device("meta"):
        size = sum(p.numel() for p in kind(config).parameters())
    if size > 3 * MOST_PARAMETERS:
        raise ConfigError(f"the small config of {model_type} still has {size} parameters.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(model_type))
        model = kind(config)
    randomize(model, seed=len(model_type))
    model.save_pretrained(folder, save_original_format=model_type not in SAVED_AS_NAMED)
    if "load_speakers" in vars(kind):
        torch.save({}, folder / "spk_dict.pt")  # no voices: it writes text alone
    if not is_bare:
        processor.save_pretrained(folder)
    return folder


def _processor_class(model_type: str) -> type[Any]:
    """Return the processor's class, without its part for videos where torchvision is missing."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    name = PROCESSOR_MAPPING_NAMES[model_type]
    module = transformers._class_to_module[name].rpartition(".")[2]  # type: ignore[attr-defined]
    if HAS_TORCHVISION:
        return getattr(transformers, name)
    return processor_class(module.removeprefix("processing_"), name)


def _tokenizer(folder: Path, processor: type[Any], own: Own) -> Any:
    """Write and return the tiny tokenizer with the special tokens that a processor's source has,
    and a type's own."""
    import transformers

    source = "".join(
        inspect.getsource(one)
        for one in processor.__mro__
        if one.__module__.startswith("transformers.models.")
    )
    names = {a or b for a, b in ATTRIBUTE.findall(source)}
    listed = [[one] if isinstance(one, str) else one for one in own.tokens.values()]
    words = dict.fromkeys((*WORD.findall(source), *itertools.chain(*listed)))
    named = {name: f"<|{name}|>" for name in sorted(names) if not name.startswith(USUAL)}
    named |= own.words
    write_tiny_tokenizer(folder, chat_template=TEMPLATE)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["additional_special_tokens"] = [*words, *named.values()]
    settings["extra_special_tokens"] = named
    settings["unk_token"] = "<|pad|>"
    file.write_text(json.dumps(settings), encoding="utf-8")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*words, *named.values()]})
    tokenizer.save_pretrained(folder)
    return tokenizer


def whole_config(model_type: str) -> Any:
    """Return a small config with a type's own settings laid over it."""
    own = OWN.get(model_type, Own())
    small = tiny_config(model_type)
    fields = small.to_dict()
    merge_deep(fields, own.config)
    fields.pop("model_type")
    return type(small)(**fields)


def _processor(made: type[Any], model_type: str, tokenizer: Any, own: Own) -> Any:
    """Return a processor with its parts' own settings."""
    import transformers
    from transformers.models.auto.feature_extraction_auto import FEATURE_EXTRACTOR_MAPPING_NAMES
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    parts: dict[str, Any] = {"tokenizer": tokenizer}
    for name in made.get_attributes():
        if name == "image_processor":
            parts[name] = _pictures(
                IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type), made, own.pictures
            )
        elif name == VIDEO_PART and HAS_TORCHVISION:
            named = VIDEO_PROCESSOR_MAPPING_NAMES[model_type]
            found = named if isinstance(named, str) else next(iter(named.values()))
            parts[name] = getattr(transformers, found)(**own.videos)
        elif name in ("feature_extractor", "audio_processor"):
            found = FEATURE_EXTRACTOR_MAPPING_NAMES.get(model_type, own.hears)
            parts[name] = getattr(transformers, found)(**own.sounds)
    return made(**parts, **own.processor)


def _pictures(names: Any, made: type[Any], settings: Json) -> Any:
    """Return a processor of images: the type's, or that beside the class of its processor; one that
    needs no torchvision where that is missing."""
    import transformers

    told = [names] if isinstance(names, str) else [*(names or {}).values()]
    modules: dict[str, str] = transformers._class_to_module  # type: ignore[attr-defined]
    package = made.__module__.split(".")[2]
    told += [name for name, module in modules.items()
             if module.startswith(f"models.{package}.image_processing")]  # fmt: skip
    end = "" if HAS_TORCHVISION else "Pil"
    for name in [f"{one.removesuffix('Fast').removesuffix('Pil')}{end}" for one in told if one]:
        if name in modules:
            return getattr(transformers, name)(**settings)
    raise ConfigError(f"{made.__name__} has no processor of images without torchvision.")


def _fit(config: Any, processor: Any, vocab_size: int, own: Own) -> None:
    """Give a config the processor's tokens, a vocabulary with them, and a long context. Mutates:
    config"""
    known = processor.tokenizer.convert_tokens_to_ids
    ends = [vars(config)[name] for name in ("encoder", "decoder") if name in vars(config)]
    texts = (config, *(one.get_text_config() for one in (config, *ends)))
    for one in {id(c): c for c in texts}.values():
        if hasattr(one, "vocab_size"):
            one.vocab_size = vocab_size
        if hasattr(one, "max_position_embeddings"):
            one.max_position_embeddings = POSITIONS
    parts = [one for one in vars(config).values() if hasattr(one, "to_dict")]
    for holder, name in [(one, name) for one in (config, *parts) for name in list(vars(one))]:
        found = re.fullmatch(r"(\w+_token)_(id|index)", name)
        word = found and (getattr(processor, found[1], None) or own.words.get(found[1]))
        if own.image_token and found and found[1] == "image_token":
            word = own.image_token
        if isinstance(word, str):
            setattr(holder, name, known(word))
    for name, words in own.tokens.items():
        ids = known(words)
        setattr(config, name, dict(zip(words, ids, strict=True)) if name.endswith("_map") else ids)
