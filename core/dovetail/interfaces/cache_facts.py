"""CacheFacts: what a row of a model keeps, for sizes that are needed before the model is built."""

from __future__ import annotations

import msgspec


class CacheFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a row keeps where it is not keys and values in every layer.

    `num_attention_layers` keep something of each token: keys and values, or `latent_size` numbers
    (0: keys and values). `num_state_layers` keep a state each: `conv_numbers` of a layer's latest
    inputs, and `state_numbers` that sum up all of them.
    """

    num_attention_layers: int
    latent_size: int = 0
    num_state_layers: int = 0
    conv_numbers: int = 0
    state_numbers: int = 0
