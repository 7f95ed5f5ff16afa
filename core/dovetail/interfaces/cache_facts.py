"""CacheFacts: what a row of a model keeps, for sizes that are needed before the model is built."""

from __future__ import annotations

import msgspec


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a row keeps where it is not keys and values of one shape in every layer.

    `num_attention_layers` keep something of each token: keys and values, or `latent_size` numbers
    (0: keys and values) with `index_size` of an indexer's key. `num_state_layers` keep a state
    each: `conv_numbers` of a layer's latest inputs, and `state_numbers` that sum up all of them.
    `num_cross_layers` keep keys and values of `cross_rows` rows of an encoder (0: of as many as
    there are tokens). `sources` has for each layer the number of the one whose keys and values it
    reads: its own, or that of an earlier one (none: all layers are as the numbers say).
    `second_heads` are the KV heads, and their size, of layers that have others than ModelSpec says
    (None: all have the same).
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
    second_heads: tuple[int, int] | None = None

    @property
    def keepers(self) -> list[int]:
        """Return the numbers of the layers that keep keys and values, as far as `sources` says."""
        return [layer for layer, source in enumerate(self.sources) if layer == source]

    @property
    def has_shared(self) -> bool:
        """Return whether some layers keep nothing and read what others wrote."""
        return len(self.keepers) < len(self.sources)
