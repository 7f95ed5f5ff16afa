"""auto-round checkpoints: AutoRound's own config over the tensors of GPTQ or AWQ.

`packing_format` says which: "awq" is AWQ's, "gptq" GPTQ's with zero points less one, "gptqmodel" or
none GPTQ's with plain zero points. `extra_config` maps layers, by name or by expression, to their
differing settings; layers of 16 bits are in full precision, and so are those outside the blocks of
`block_name_to_quantize`. Source: AutoRound, its export and inference
(https://github.com/intel/auto-round).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.layers.stored.checkpoint_method import HEAD, StoredMethod
from dovetail_plugins.layers.stored.layer_names import one_for_parts
from dovetail_plugins.layers.stored.names import bare
from dovetail_plugins.layers.stored.rounding import IntegerOptions
from dovetail_plugins.quantization._estimates import qweight_estimate
from dovetail_plugins.quantization.awq import AwqLayout
from dovetail_plugins.quantization.gptq import GptqLayout

BITS = range(2, 9)
FULL_BITS = 16
AUTO_ROUND, AUTO_GPTQ = ("auto_round", "autoround"), "auto_round:auto_gptq"


class AutoRound(StoredMethod):
    """Layers in GPTQ's or AWQ's layout, each with its own bits and groups."""

    info = Info(
        summary="AutoRound checkpoints, packed as GPTQ or AWQ",
        source="https://github.com/intel/auto-round",
    )
    Options = IntegerOptions
    stored_as = ("auto-round",)

    def __init__(self, options: Any, model: ModelSpec) -> None:
        super().__init__(options, model)
        self.packing = str(
            self.config.get("packing_format") or self.config.get("backend") or AUTO_GPTQ
        )
        if str(self.config.get("data_type", "int")) != "int":
            raise self.refuse(f'weights of type "{self.config["data_type"]}" are not read; "int".')
        self.usual = self._layout(self.config)
        self.extra: Mapping[str, Any] = self.config.get("extra_config") or {}
        blocks = self.config.get("block_name_to_quantize") or self.config.get("quant_block_list")
        blocks = blocks.split(",") if isinstance(blocks, str) else blocks
        self.blocks = tuple(_flat(blocks or ()))

    def is_plain(self, spec: LinearSpec) -> bool:
        """Return whether the layer is in full precision. `extra_config` may name the head."""
        stored = self.names.is_plain(spec.name)
        if stored is not None:
            return stored
        if spec.name == HEAD:
            return HEAD not in self.extra or self.layout(spec) is None
        return super().is_plain(spec) or self.layout(spec) is None

    def layout(self, spec: LinearSpec) -> GptqLayout | AwqLayout | None:
        """Return how a layer is stored."""
        return one_for_parts(spec.name, self._look_up, self.usual, where=self.where)

    def memory_estimate(self, layer: StoredLayer, *, packs: bool) -> StorageEstimate | None:
        """Return the estimate of a layer in GPTQ's or AWQ's layout."""
        return qweight_estimate(
            layer,
            is_symmetric=bool((self._config_of(layer.name) or self.config).get("sym", True)),
            packs=packs,
        )

    def _look_up(self, name: str) -> GptqLayout | AwqLayout | None:
        """Return the layout of one checkpoint layer, None for full precision."""
        config = self._config_of(name)
        return None if config is None else self._layout(config)

    def _config_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the config of one checkpoint layer, None if it is not quantized."""
        exact = (more for key, more in self.extra.items() if bare(key) == bare(name))
        changes = next(exact, None)
        if changes is None:
            found = (more for key, more in self.extra.items() if self._matches(key, name))
            changes = next(found, None)
        if changes is None and name != HEAD and not self._is_in_blocks(name):
            return None
        return {**self.config, **(changes or {})}

    def _matches(self, pattern: str, name: str) -> bool:
        try:
            names = self.names.matched(name, pattern)
            return any(re.fullmatch(pattern, one) is not None for one in names)
        except re.error as error:
            raise self.refuse(
                f"extra_config: {pattern!r} is not a regular expression: {error}."
            ) from error

    def _is_in_blocks(self, name: str) -> bool:
        return not self.blocks or any(
            one.startswith(f"{block}.")
            for block in self.blocks
            for one in self.names.matched(name, block)
        )

    def _layout(self, config: Mapping[str, Any]) -> GptqLayout | AwqLayout | None:
        """Return the layout that a layer's config describes. Raises: ConfigError"""
        bits, group = int(config.get("bits", 4)), int(config.get("group_size", 128))
        if bits >= FULL_BITS:
            return None
        if "awq" in self.packing:
            if bits != 4:
                raise self.refuse(f"{bits} bits in AWQ's layout are not read; 4 are.")
            return AwqLayout(group=group)
        if bits not in BITS or not ("gptq" in self.packing or self.packing.startswith(AUTO_ROUND)):
            raise self.refuse(f'{bits} bits packed as "{self.packing}" are not read.')
        less_one = "gptq" in self.packing and "gptqmodel" not in self.packing
        return GptqLayout(bits=bits, group=group, keeps_zeros=not less_one)


def _flat(blocks: Any) -> list[str]:
    """Return names of blocks that a config may give in lists of lists; of a list of layers, the
    module that holds them."""
    names = []
    for block in blocks:
        if isinstance(block, str):
            names.append(block.strip())
        else:
            names.extend(name.strip() for name in block)
    return names
