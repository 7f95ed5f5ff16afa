"""QuantizeJob: reads a checkpoint, quantizes its matrices one by one, and writes the results.

At most one matrix is in memory in addition to what the writer holds; with a text, one block and the
text's hidden states.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from dovetail import registry
from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import RankSpec, RunSpec, Selection
from dovetail.interfaces.load_format import LoadFormat
from dovetail.interfaces.quantizer import Block, Inputs, Quantized, Quantizer, QuantizeTask
from dovetail.json_values import json_value
from dovetail.layers.weights import TIED_FIX
from dovetail_plugins.commands._converted import SETTINGS
from dovetail_plugins.gguf.writing.sources import gguf_file
from dovetail_plugins.quantize.calibration import Calibration
from dovetail_plugins.quantize.gguf_source import GgufSource
from dovetail_plugins.quantize.plan import (
    TABLES,
    TOKEN_TABLES,
    WEIGHT,
    QuantizePlan,
    group_of,
    plan_of,
)
from dovetail_plugins.quantize.report import LayerError, error_of
from dovetail_plugins.quantize.source import CheckpointSource

CONFIG = "config.json"
STORED = "quantization_config"
SAME = 1e-3
"""The relative change of a block's output that float32 rounding may cause."""
LEAST_TOKENS = 128
"""The tokens of the text needed to judge a layer's inputs. Experts that get fewer are rounded to
nearest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of a job: bytes of weights, inputs per scale (None: no groups), errors per matrix,
    and the plan with the unquantized matrices. A calibrated method rounded layers to nearest that
    got fewer than `least_tokens` tokens (0: no text was needed)."""

    num_bytes: int
    group: int | None
    errors: Sequence[LayerError]
    plan: QuantizePlan
    least_tokens: int


class QuantizeJob:
    """The conversion of one checkpoint to one layout. `tell` gets how many matrices are done, and
    how many there are."""

    def __init__(
        self,
        run: RunSpec,
        method: Selection,
        *,
        group: int | None = None,
        windows: torch.Tensor | None = None,
        is_shown: bool = False,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        kind = registry.admin.load_selection(method)
        self._run, self._windows, self._is_shown, self._tell = run, windows, is_shown, tell
        self._source = source_of(run, kind, has_text=windows is not None)
        check_head(run, self._source)
        self._is_grouped = "grouped" in kind.capabilities
        if group is not None and not self._is_grouped:
            raise ConfigError(
                f"{method.name} has no groups of inputs.", where="--group", fix="leave it out."
            )
        self._group = group_of(group, self._source.shapes) if self._is_grouped else 0
        task = QuantizeTask(model=run.model, group=self._group)
        self._quantizer = cast(Quantizer, registry.make(method, task))
        self._plan = plan_of(self._source.shapes, self._quantizer)
        self._errors: list[LayerError] = []

    def write(self, out: Path) -> JobResult:
        """Write the quantized checkpoint to a new folder.

        Raises: ConfigError if the folder is not empty or cannot be written.
        """
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(
                "already exists and is not an empty folder.",
                where=f"--out {out}",
                fix="name a new folder.",
            )
        out.mkdir(parents=True, exist_ok=True)
        num_bytes = self._write_all(out)
        return JobResult(
            num_bytes=num_bytes,
            group=self._group if self._is_grouped else None,
            errors=self._errors,
            plan=self._plan,
            least_tokens=LEAST_TOKENS if "calibrated" in self._quantizer.capabilities else 0,
        )

    def _write_all(self, out: Path) -> int:
        if "writes" in self._quantizer.capabilities:
            return self._quantizer.write(str(out), self._tensors())
        target = cast("type[LoadFormat]", registry.load("load_format", "safetensors"))
        num_bytes = target.write(str(out), self._tensors(), rank=RankSpec())
        self._copy_settings(out)
        return num_bytes

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of the new checkpoint, with a progress bar on a terminal."""
        total = len(self._plan.quantized)
        with tqdm(
            total=total, unit="matrix", desc="quantize", leave=False, disable=not self._is_shown
        ) as bar:
            source = self._at_once() if self._windows is None else self._block_by_block()
            for name, tensor in source:
                if self._tell is not None:
                    self._tell(len(self._errors), total)
                bar.update(len(self._errors) - bar.n)
                yield name, self._source.turned(name, tensor)
        if len(self._errors) != total:
            raise ConfigError(
                "some matrices of the plan were not found.", where=self._run.model.path
            )

    def _at_once(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._source.tensors():
            yield from self._through(name, tensor)

    def _block_by_block(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors outside the blocks, then each block's as the text reaches it."""
        assert self._windows is not None
        squares = "squares" in self._quantizer.capabilities
        walk = Calibration(self._run.model, self._source, self._windows, only_squares=squares)
        types: dict[str, torch.dtype] = {}
        for name, tensor in self._source.tensors():
            types[name] = tensor.dtype
            if name not in walk.inside:
                yield from self._through(name, tensor)
        for number in range(len(walk.names)):
            block = walk.measure(number)
            rare = {n: x for n, x in block.inputs.items() if x.num_tokens < LEAST_TOKENS}
            for name in rare:
                del block.inputs[name]
            self._smooth(walk, number, block)
            yield from self._block(block, walk.stored_names(number), types, rare)
            walk.advance(number, block.tensors)

    def _smooth(self, walk: Calibration, number: int, block: Block) -> None:
        """Let the quantizer scale a block's inputs. Mutates: block. Raises: ConfigError"""
        before = dict(block.tensors)
        self._quantizer.smooth(block)
        if all(block.tensors[name] is tensor for name, tensor in before.items()):
            return
        if walk.change(number, block.tensors) > SAME:
            raise ConfigError(
                f"{block.name} computes different results with scaled inputs.",
                where="--method",
                fix="use a method that does not scale: gptq, int4.",
            )

    def _block(
        self,
        block: Block,
        names: Mapping[str, str],
        types: Mapping[str, torch.dtype],
        rare: Mapping[str, Inputs],
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a block's tensors under the checkpoint's `names`; `block` is left with their
        dequantized values. `rare` are inputs with too few tokens to use. Mutates: block"""
        for own, tensor in block.tensors.items():
            name = names[own]
            layer = self._plan.layer_of(name)
            if layer is None:
                stored = tensor.to(types[name])
                block.tensors[own] = stored.float()
                yield name, stored
                continue
            word = own.removesuffix(WEIGHT)
            inputs = block.inputs.get(word)
            seen = inputs or rare.get(word)
            done = self._quantizer.quantize(layer, finite(layer, tensor), inputs)
            tokens = 0 if seen is None else seen.num_tokens
            self._errors.append(error_of(layer, tensor, done, seen, tokens))
            block.tensors[own] = done.meant.float()
            yield from _tensors_of(layer, done)

    def _through(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield a tensor unchanged, or its quantized tensors without knowledge of its inputs."""
        layer = self._plan.layer_of(name)
        if layer is None:
            yield name, tensor
            return
        weight = finite(layer, tensor.float())
        done = self._quantizer.quantize(layer, weight, None)
        self._errors.append(error_of(layer, weight, done, None, None))
        yield from _tensors_of(layer, done)

    def _copy_settings(self, out: Path) -> None:
        """Copy all other files, and describe the quantized weights in config.json."""
        source = Path(self._run.model.path)
        files = {file for pattern in SETTINGS for file in source.glob(pattern) if file.is_file()}
        for file in files:
            if not file.name.endswith(".index.json") and file.name != CONFIG:
                shutil.copyfile(file, out / file.name)
        code = self._run.model.code
        for name, text in code.files.items() if code is not None else ():
            (out / name).write_text(text, encoding="utf-8", newline="")
        config: dict[str, Any] = json_value((source / CONFIG).read_text(encoding="utf-8"))
        whole = [name for name in sorted(self._plan.whole) if not name.endswith(TOKEN_TABLES)]
        config[STORED] = dict(self._quantizer.settings(whole))
        (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def finite(layer: str, weight: torch.Tensor) -> torch.Tensor:
    """Return a layer's weight. Raises: ConfigError if it has non-finite values"""
    if not bool(weight.isfinite().all()):
        raise ConfigError(
            "it holds numbers that are not finite.",
            where=f"{layer}{WEIGHT}",
            fix="download the checkpoint again.",
        )
    return weight


def _tensors_of(layer: str, done: Quantized) -> list[tuple[str, torch.Tensor]]:
    """Return a layer's tensors under the checkpoint's names."""
    return [(f"{layer}.{leaf}", tensor) for leaf, tensor in done.tensors.items()]


def source_of(run: RunSpec, kind: type[Quantizer], *, has_text: bool) -> CheckpointSource:
    """Return the checkpoint that is read: a folder, or a GGUF file for methods that take its
    matrices as they are. Raises: ConfigError"""
    file = gguf_file(run.model)
    if file is None or "squares" not in kind.capabilities:
        check_source(run)
        return CheckpointSource(run)
    if has_text:
        raise ConfigError(
            "transformers does not run GGUF files.",
            where="--calibration",
            fix="name the folder of the checkpoint, or use --imatrix FILE.",
        )
    return GgufSource(file)


def check_source(run: RunSpec) -> None:
    """Raises: ConfigError for a checkpoint that is quantized, not a folder, or stores inputs
    first"""
    model, folder = run.model, Path(run.model.path)
    if not folder.is_dir():
        raise ConfigError("only folders can be read, not single files.", where=str(folder),
                          fix="name the folder of the full-precision checkpoint.")  # fmt: skip
    if run.quantization.name != "none" or model.hf_config.get(STORED):
        raise ConfigError(
            f"it is quantized already ({run.quantization.name}).",
            where=str(folder),
            fix="name the full-precision checkpoint that it was made from.",
        )
    if not facts_of(model.hf_config).quantized_is_readable:
        raise ConfigError(
            "its matrices are stored with inputs first, and a quantized copy could not be loaded.",
            where=str(folder),
            fix="quantize it while loading: `dovetail serve --quantization int8`.",
        )


def check_head(run: RunSpec, source: CheckpointSource) -> None:
    """Raises: ConfigError if the head differs from the token table although the settings tie
    them"""
    tables = tuple(f".{name}{WEIGHT}" for name in TABLES)
    names = [name for name in source.shapes if f".{name}".endswith(tables)]
    if not run.model.hf_config.get("tie_word_embeddings") or len(names) < 2:
        return
    first, *others = source.those(lambda name: name in names).items()
    for name, tensor in others:
        if tensor.shape == first[1].shape and not torch.equal(tensor, first[1]):
            raise ConfigError(
                f"{first[0]} and {name} hold different values, and tie_word_embeddings is true.",
                where=run.model.path,
                fix=TIED_FIX,
            )
