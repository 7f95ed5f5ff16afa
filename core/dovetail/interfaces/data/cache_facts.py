"""CacheFacts: what a model caches per row, for sizes that are needed before it is built."""

from __future__ import annotations

import msgspec


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a row caches, if that is not keys and values of one shape in every layer.

    `num_attention_layers` cache something per token: keys and values, or `latent_size` numbers (0:
    keys and values) plus an indexer's key of `index_size`. `num_state_layers` have one state each:
    `conv_numbers` of a layer's latest inputs, and `state_numbers` that summarize all of them.
    `num_cross_layers` cache keys and values of `cross_rows` encoder rows (0: as many as there are
    tokens). `sources` gives for each layer the number of the layer whose keys and values it reads,
    itself or an earlier one (empty: as the numbers above say). `num_windowed_layers` cache as much
    per token, but only of a row's last `windowed_tokens`. Blocks hold multiples of `unit_tokens`
    tokens. `second_heads` are the number of KV
    heads and their size in layers that differ from ModelSpec (None: all layers are alike).
    """

    num_attention_layers: int
    latent_size: int = 0
    index_size: int = 0
    num_state_layers: int = 0
    conv_numbers: int = 0
    state_numbers: int = 0
    num_cross_layers: int = 0
    cross_rows: int = 0
    sources: tuple[int, ...] = ()
    num_windowed_layers: int = 0
    windowed_tokens: int = 0
    unit_tokens: int = 1
    second_heads: tuple[int, int] | None = None

    @property
    def keepers(self) -> list[int]:
        """Return the numbers of the layers that cache keys and values of their own, according to
        `sources`."""
        return [layer for layer, source in enumerate(self.sources) if layer == source]

    @property
    def has_shared(self) -> bool:
        """Return whether some layers cache nothing and read what others wrote."""
        return len(self.keepers) < len(self.sources)
