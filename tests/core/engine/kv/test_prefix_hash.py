"""Prefix hashes: chained, keyed, typed, incremental; and the encodings they are taken over."""

from __future__ import annotations

import hashlib

import pytest

from dovetail.engine.kv import prefix_hash
from dovetail.engine.kv.prefix_hash import DEFAULT, PrefixHasher
from dovetail.engine.request import Request
from dovetail.errors import ConfigError
from dovetail.interfaces.data.sampling_params import SamplingParams


def make_request(token_ids: list[int], salt: str = "", adapter: str = "") -> Request:
    return Request(
        request_id="r",
        prompt_ids=token_ids,
        sampling=SamplingParams(),
        seed=0,
        max_model_tokens=1_000,
        cache_salt=salt,
        adapter=adapter,
    )


def hashes(token_ids: list[int], salt: str = "", adapter: str = "", key: bytes = b"k") -> list:
    hasher = PrefixHasher(DEFAULT, key, 4)
    return hasher.extend(make_request(token_ids, salt, adapter), len(token_ids) // 4)


def test_equal_prefixes_meet_and_others_do_not() -> None:
    hasher = PrefixHasher(DEFAULT, b"key", 4)
    a = hasher.extend(make_request([1, 2, 3, 4, 5, 6, 7, 8]), 2)
    b = hasher.extend(make_request([1, 2, 3, 4, 5, 6, 7, 9]), 2)
    c = hasher.extend(make_request([0, 2, 3, 4, 5, 6, 7, 8]), 2)
    assert a[0] == b[0]
    assert len({a[0], a[1], b[1], c[0], c[1]}) == 5
    assert all(len(value) == 32 for value in a)


def test_hashing_goes_on_where_it_stopped() -> None:
    hasher = PrefixHasher(DEFAULT, b"k", 4)
    request = make_request(list(range(8)))
    first = list(hasher.extend(request, 2))
    request.token_ids += [8, 9, 10, 11]
    assert hasher.extend(request, 3)[:2] == first
    assert request.block_hashes == hashes(list(range(12)))
    assert hasher.extend(request, 1) == request.block_hashes


def test_a_salt_is_not_an_adapter_and_the_key_matters() -> None:
    tokens = [1, 2, 3, 4]
    found = [
        hashes(tokens),
        hashes(tokens, salt="x"),
        hashes(tokens, adapter="x"),
        hashes(tokens, salt="x", adapter="x"),
        hashes(tokens, salt="saltx"),
        hashes(tokens, salt="x", key=b"other"),
    ]
    assert len({value[0] for value in found}) == len(found)


def test_keys_cannot_be_split_another_way() -> None:
    hasher = PrefixHasher(DEFAULT, b"k", 4)
    assert hasher.root([("a", "bc")]) != hasher.root([("ab", "c")])
    assert hasher.root([("a", "b"), ("c", "d")]) != hasher.root([("a", "bc"), ("", "d")])
    assert hasher.root([]) != hasher.root([("", "")])
    assert hasher.root([("salt", "\ud800")])  # JSON can carry half a surrogate pair


def test_sha256_is_sha256_of_key_and_data() -> None:
    key, data = b"secret", b"data"
    expected = hashlib.sha256(len(key).to_bytes(8, "little") + key + data).digest()
    assert prefix_hash.sha256(key, data) == expected


def test_what_is_not_a_block_hash_is_refused() -> None:
    with pytest.raises(ConfigError, match="prefix-caching-hash-algo"):
        PrefixHasher("hashlib:sha256", b"k", 4)
    with pytest.raises(ConfigError, match="no_such_module"):
        PrefixHasher("no_such_module:XXHASH", b"k", 4)


def test_units_have_the_same_names_in_blocks_of_every_size() -> None:
    ids = list(range(24))
    small = PrefixHasher(DEFAULT, b"k", 4).extend(make_request(ids), 6)
    for size in (4, 8, 12):
        hasher = PrefixHasher(DEFAULT, b"k", size, unit_tokens=4)
        request = make_request(ids)
        hasher.extend(request, 1)  # in two goes it is the same
        names = hasher.extend(request, 24 // size)
        count = size // 4
        assert [len(name) for name in names] == [32 * count] * (24 // size)
        units = [
            name[start : start + 32] for name in names for start in range(32 * (count - 1), -1, -32)
        ]
        assert units == small
