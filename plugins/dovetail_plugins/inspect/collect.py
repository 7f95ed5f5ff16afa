"""inspect(config): collects all facts of a checkpoint.

`config.resolve` itself decides what `serve` would decide. If it refuses the checkpoint, the refusal
becomes a warning, and the remaining facts are still collected. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.context_length import checkpoint_tokens, window_tokens
from dovetail.config.checkpoint.dtypes import chosen_dtypes
from dovetail.config.checkpoint.experts import experts_of
from dovetail.config.checkpoint.generation import default_sampling
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.quant_files import build_method
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.config.rules import selections
from dovetail.config.rules.machine.device import select_platform
from dovetail.config.rules.model.checkpoint import hub_of
from dovetail.errors import DovetailError
from dovetail.interfaces.data.headers import TensorHeader
from dovetail.interfaces.data.spec import EngineSpec, ModelSpec, Selection
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.platform import AUTO_DTYPE, Platform
from dovetail.interfaces.quantization import QuantMethod
from dovetail.interfaces.tokenizer import end_token_ids
from dovetail_kernels.cpu.library import library
from dovetail_plugins.inspect import memory, warnings
from dovetail_plugins.inspect.compatibility import chosen, listening
from dovetail_plugins.inspect.facts import Inspected, Memory, ModelFacts, TextFacts, WeightFile
from dovetail_plugins.inspect.gguf_file import facts_of_file
from dovetail_plugins.inspect.how import How
from dovetail_plugins.inspect.purpose import purpose_from
from dovetail_plugins.inspect.stored_layers import layers_of
from dovetail_plugins.inspect.trial import refusal
from dovetail_plugins.inspect.weights import groups_of
from dovetail_plugins.layers.stored.rounding import asked_of

BACKED = ("transformers", "transformers_encoder")
"""The model plugins that run transformers' own modules."""
REFUSED = "serve would refuse it"
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth", "*.tensors")


@dataclass(kw_only=True)
class EngineParts:
    """The known parts of the engine that would start: all of `spec`, or pieces of it. `is_refused`:
    the model cannot be created."""

    model: ModelSpec
    platform: Platform
    kv_dtype: str
    spec: EngineSpec | None = None
    is_refused: bool = False
    load_format: Selection | None = None
    quantization: Selection | None = None
    model_plugin: Selection | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        """Return the type of the device."""
        return self.platform.device_type


def inspect(config: Config) -> Inspected:
    """Return a checkpoint's contents and its memory needs. Raises: ConfigError if there is no
    checkpoint, or nothing is known of it"""
    with listening() as log_lines:
        parts = _parts(config)
        headers = _headers(config, parts)
        text = _text(config, parts)
        generation = _generation(config, parts)
    layers = layers_of(headers or ())
    method = _method(parts)
    how = _how(parts, method)
    groups = groups_of(layers, how)
    files = weight_files(Path(parts.model.path), headers)
    taken = memory.memory_of(groups, how, parts) if groups else None
    parts.warnings += warnings.of_checkpoint(parts.model, layers, groups, how)
    parts.warnings += warnings.of_folder(Path(parts.model.path), files)
    parts.warnings += warnings.of_memory(taken)
    if parts.spec is not None:
        parts.warnings += warnings.of_text(parts.model, text)
    return Inspected(
        path=parts.model.path,
        would_start=parts.spec is not None and not parts.is_refused,
        model=model_facts(parts.model),
        purpose=purpose_from(parts.spec.run.pooling) if parts.spec is not None else None,
        parameters=sum(group.parameters for group in groups),
        active_parameters=sum(group.active_parameters for group in groups),
        files=files,
        media=parts.spec.media.kinds if parts.spec is not None and parts.spec.media else (),
        file=facts_of_file(Path(parts.model.path)),
        groups=groups,
        memory=taken,
        quantization=parts.quantization.name if parts.quantization else None,
        plugins=chosen(config, parts, log_lines, files),
        text=text,
        generation=generation,
        warnings=tuple(dict.fromkeys(parts.warnings)),
    )


def memory_taken(config: Config, spec: EngineSpec) -> Memory | None:
    """Return the memory of a resolved engine; None if no file describes its weights."""
    with listening():
        parts = _parts_of(config, spec)
        headers = _headers(config, parts)
    how = _how(parts, _method(parts))
    groups = groups_of(layers_of(headers or ()), how)
    return memory.memory_of(groups, how, parts) if groups else None


def model_facts(model: ModelSpec) -> ModelFacts:
    """Return the shape of a model."""
    experts, picked = experts_of(model.hf_config)
    return ModelFacts(
        architecture=model.architecture,
        model_type=str(model.hf_config.get("model_type", "")),
        layers=model.num_layers,
        hidden_size=model.hidden_size,
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        vocab_size=model.vocab_size,
        context_tokens=checkpoint_tokens(model),
        window_tokens=window_tokens(model.hf_config),
        experts=experts,
        experts_per_token=picked,
    )


def weight_files(path: Path, headers: list[TensorHeader] | None) -> tuple[WeightFile, ...]:
    """Return the files with the tensors; without headers, all possible weight files."""
    folder = path if path.is_dir() else path.parent
    if headers is None:
        names = (
            [path.name]
            if path.is_file()
            else sorted(file.name for end in _WEIGHTS for file in folder.glob(end))
        )
        return tuple(_file(folder, name, None) for name in names)
    counts: dict[str, int] = {}
    for header in headers:
        counts[header.file] = counts.get(header.file, 0) + 1
    return tuple(_file(folder, name, count) for name, count in sorted(counts.items()))


def _file(folder: Path, name: str, tensors: int | None) -> WeightFile:
    return WeightFile(name=name, bytes=(folder / name).stat().st_size, tensors=tensors)


def _parts(config: Config) -> EngineParts:
    """Return the engine that would start, or its pieces. Raises: ConfigError if there is no
    checkpoint"""
    try:
        spec = resolve(config)
    except DovetailError as error:
        parts = _pieces(config)
        parts.warnings.insert(0, f"{REFUSED}: {error}")
        return parts
    run, parts = spec.run, _parts_of(config, spec)
    if (refused := refusal(run)) is not None:
        parts.is_refused = True
        parts.warnings.append(f"{REFUSED}: {refused}")
    return parts


def _parts_of(config: Config, spec: EngineSpec) -> EngineParts:
    run = spec.run
    return EngineParts(
        model=run.model,
        platform=select_platform(config.device, config.plugin)[1],
        kv_dtype=run.kv_dtype,
        spec=spec,
        load_format=run.load_format,
        quantization=run.quantization,
        model_plugin=run.model_plugin,
    )


def _pieces(config: Config) -> EngineParts:
    """Return the facts that do not need a whole engine. Raises: ConfigError"""
    _, platform = select_platform(config.device, config.plugin)
    path = find_model(
        config.model.model,
        revision=config.model.revision,
        hub=hub_of(config.model, config.load),
        needs_weights=False,
        model_dirs=config.load.model_dir,
    )
    facts = load_model_facts(
        path, overrides=config.model.hf_overrides, config_format=config.model.config_format
    )
    requested = registry.admin.value_of("dtype", config.model.dtype) or AUTO_DTYPE
    computed, weight_dtype = chosen_dtypes(requested, facts.hf_config, platform)
    model = msgspec.structs.replace(facts, dtype=computed, weight_dtype=weight_dtype)
    kv_dtype = registry.admin.value_of("kv_cache_dtype", config.cache.kv_cache_dtype)
    kv_dtype = kv_dtype or platform.defaults().kv_dtype or model.weight_dtype
    parts = EngineParts(model=model, platform=platform, kv_dtype=kv_dtype)
    with _tried(parts):
        parts.load_format = selections.select_load_format(
            config.load, config.plugin, config.origins, parts.model.path
        )
    with _tried(parts):
        parts.quantization = selections.select_quantization(
            config.model, config.load, config.plugin, model
        )
    with _tried(parts):
        parts.model_plugin = selections.select_model(
            config.model, config.multimodal, config.plugin, model
        )
    return parts


@contextmanager
def _tried(parts: EngineParts, *, is_once: bool = False) -> Iterator[None]:
    """Turn an error in the block into a warning. `is_once`: unless there is one about the same file
    or flag. Mutates: parts"""
    try:
        yield
    except DovetailError as error:
        where = error.where
        if not (is_once and where and any(where in warning for warning in parts.warnings)):
            parts.warnings.append(str(error))


def _headers(config: Config, parts: EngineParts) -> list[TensorHeader] | None:
    """Return the headers of all tensors; None if the format has none or a file is invalid."""
    if parts.load_format is None:
        return None
    checkpoint = Checkpoint(
        path=parts.model.path, ignore_patterns=tuple(config.load.ignore_patterns)
    )
    with _tried(parts, is_once=True):
        plugin = registry.admin.load_selection(parts.load_format)
        headers = plugin(registry.admin.build_options(parts.load_format)).headers(checkpoint)
        if headers is not None:
            return list(headers)
        parts.warnings.append(
            f'load format "{parts.load_format.name}": these files tell their tensors only when '
            "they are loaded; sizes of layers and memory are left out."
        )
    return None


def _method(parts: EngineParts) -> QuantMethod | None:
    """Return the quantization method; None if it refuses the checkpoint."""
    if parts.quantization is None:
        return None
    with _tried(parts):
        return build_method(parts.quantization, parts.model)
    return None


def _how(parts: EngineParts, method: QuantMethod | None) -> How:
    native = library() if parts.device == "cpu" else None
    options = registry.admin.build_options(parts.quantization) if parts.quantization else None
    return How(
        model=parts.model,
        method=method,
        panel_outputs=0 if native is None else native.panel_outputs(),
        is_tied=bool(parts.model.hf_config.get("tie_word_embeddings", False)),
        is_own=parts.model_plugin is None or parts.model_plugin.name not in BACKED,
        is_cpu=parts.device == "cpu",
        isa="" if native is None else native.isa,
        asked=asked_of(options),
    )


def _text(config: Config, parts: EngineParts) -> TextFacts | None:
    """Return the facts about text input and output; None without a tokenizer."""
    from dovetail_plugins.inspect.look_ahead import look_ahead

    if parts.spec is None or not parts.spec.has_tokenizer:
        return None
    with _tried(parts):
        ahead = look_ahead(config, parts.spec)
        facts = ahead.facts
        texts = facts.special_texts
        tool, reasoning = ahead.parsers.tool, ahead.parsers.reasoning
        ends = end_token_ids(parts.model.eos_token_ids, facts)
        return TextFacts(
            vocab_size=facts.vocab_size,
            special_tokens=len(facts.special_ids),
            bos_token=facts.special_tokens.get("bos_token"),
            end_tokens=tuple(texts.get(end, f"id {end}") for end in ends),
            has_chat_template=bool(ahead.renderer.source),
            template_chars=len(ahead.renderer.source),
            knows_tools="tools" in ahead.renderer.source,
            tool_parser=tool.name if tool else None,
            reasoning_parser=reasoning.name if reasoning else None,
        )
    return None


def _generation(config: Config, parts: EngineParts) -> dict[str, object]:
    """Return the default sampling settings of a request."""
    if parts.spec is not None:
        return dict(parts.spec.default_sampling)
    with _tried(parts):
        return dict(default_sampling("model", parts.model.path, {}))
    return {}
