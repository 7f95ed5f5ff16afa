"""The facts of adapters: which there are, how much room they have, where others are found. Pure
data."""

from __future__ import annotations

import msgspec

from dovetail.interfaces.selection import Selection


class AdapterSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapter"):
    """An adapter as users know it: the `name` that requests ask for, the folder `path` it is read
    from, and the name of the model it was made for (`base`, "": not told).

    `owner` is the mark of the API key that had it loaded, where a server has several keys ("": the
    server itself); others may use it, but not replace or unload it.

    `key` tells two adapters of one name apart, which follow each other; the engine gives it. It
    also tells what has been found in the folder: how many tokens the adapter adds to the model's
    vocabulary, and whether it has a tokenizer for them.
    """

    name: str
    path: str
    base: str = ""
    owner: str = ""
    key: str = ""
    num_added_tokens: int = 0
    has_tokenizer: bool = False


class AdapterFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ranks tell of an adapter that they have read: how many tokens it adds, and whether its
    folder has a tokenizer, which was found to be whole."""

    num_added_tokens: int = 0
    has_tokenizer: bool = False


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The room for adapters: `max_slots` of them in one step, of at most `max_rank`, and `max_host`
    in host memory; `dtype` is the type that they are kept in. `max_prompt_slots` of those that put
    vectors before a prompt, at most `max_prompt_tokens`. `takes_bias`: biases are applied, not
    refused. `rope_factors` are the linear rope scalings that adapters may have of their own.
    Each may add `max_added_tokens` tokens, which `tokenizer` reads from its folder (None: prompts
    and answers are token ids). `methods` read them.
    """

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
    """`resolvers` are asked in turn for the name of an adapter that is not known. `base_names` are
    those that an adapter may have for the served model; hub ids are looked up in the folder
    `hub_cache` ("": the hub's own)."""

    resolvers: tuple[Selection, ...] = ()
    base_names: tuple[str, ...] = ()
    hub_cache: str = ""
