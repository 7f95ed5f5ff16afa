"""The resolved facts of adapters: which are loaded, their limits, and where others are found. Pure
data."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.data.selection import Selection


class AdapterSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapter"):
    """An adapter as users know it: the `name` that requests use, the folder `path` it is loaded
    from, and the name of the model it was made for (`base`, "": unknown).

    `owner` identifies the API key that loaded it, if a server has several keys ("": the server
    itself). Others may use it, but not replace or unload it.

    The engine sets `key`, which distinguishes successive adapters of the same name. It also sets
    what it found in the folder: how many tokens the adapter adds to the model's vocabulary, and
    whether it has a tokenizer for them.
    """

    name: str
    path: str
    base: str = ""
    owner: str = ""
    key: str = ""
    num_added_tokens: int = 0
    has_tokenizer: bool = False


class AdapterFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ranks report about an adapter that they have read: how many tokens it adds, and whether
    its folder has a complete tokenizer."""

    num_added_tokens: int = 0
    has_tokenizer: bool = False


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of adapters: `max_slots` of them in one step, of rank `max_rank` at most, and
    `max_host` in host memory; `dtype` is their storage type. `max_prompt_slots` is for those that
    put vectors before a prompt, at most `max_prompt_tokens` each. `takes_bias`: biases are applied,
    not refused. `rope_factors` are the linear rope scalings that adapters may have of their own.
    Each adapter may add `max_added_tokens` tokens, which `tokenizer` reads from its folder (None:
    prompts and answers are token ids). `methods` read the adapters."""

    max_slots: int = 1
    max_rank: int = 16
    max_host: int = 1
    dtype: str
    max_prompt_slots: int = 0
    max_prompt_tokens: int = 0
    takes_bias: bool = False
    rope_factors: tuple[float, ...] = ()
    max_added_tokens: int = 0
    tokenizer: Selection | None = None
    methods: tuple[Selection, ...] = ()


class AdapterSearch(msgspec.Struct, frozen=True, kw_only=True):
    """`resolvers` are tried in turn for an unknown adapter name. `base_names` are the base model
    names that an adapter for the served model may state. Hub ids are looked up in the folder
    `hub_cache` ("": the hub's default)."""

    resolvers: tuple[Selection, ...] = ()
    base_names: tuple[str, ...] = ()
    hub_cache: str = ""
