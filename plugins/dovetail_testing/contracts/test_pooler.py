"""Pooler: one vector of a prompt or one for each of several tokens, depending only on that prompt,
whatever its length and type; it reads only what it claims to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.interfaces.data.spec import PoolingSpec, Selection
from dovetail.interfaces.pooler import Pooler
from dovetail_testing.contract import default_options, requires, without

SIZE = 16
MARK = 7
"""The token that ends steps."""
LENGTHS = (1, 2, 9, 40)


def new_pooler(plugin: Any, **settings: Any) -> Pooler:
    """Return a new pooler with its default options."""
    chosen = Selection(kind="pooler", name="pooler", target="")
    spec = PoolingSpec(tasks=("embed",), pooler=chosen, token_pooler=chosen, size=SIZE, **settings)
    pooler: Pooler = plugin(default_options(plugin), spec)
    return pooler


@pytest.fixture
def pooler(plugin: Any) -> Pooler:
    """Return the pooler with its default options."""
    return new_pooler(plugin)


def prompt(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Return hidden states and tokens, the last one ends a step.
    Shapes: num_tokens n -> [n, SIZE], n"""
    generator = torch.Generator().manual_seed(100 * seed + num_tokens)
    hidden = torch.randn(num_tokens, SIZE, generator=generator)
    tokens = torch.randint(0, 20, (num_tokens,), generator=generator).tolist()
    return hidden, [*tokens[:-1], MARK]


class TestPooler:
    """Clauses of poolers."""

    kind = "pooler"

    @without("per_token")
    @pytest.mark.parametrize("length", LENGTHS)
    def test_makes_one_vector(self, pooler: Pooler, length: int) -> None:
        """A prompt of any length becomes one vector of finite numbers, of the size of a state."""
        pooled = pooler.pool(*prompt(length))
        assert tuple(pooled.shape) == (SIZE,)
        assert bool(torch.isfinite(pooled).all())

    @requires("per_token")
    @pytest.mark.parametrize("length", LENGTHS)
    def test_makes_a_vector_for_tokens(self, pooler: Pooler, length: int) -> None:
        """A prompt becomes a vector for each of some of its tokens, in a matrix."""
        pooled = pooler.pool(*prompt(length))
        assert pooled.dim() == 2 and pooled.shape[1] == SIZE
        assert 1 <= len(pooled) <= length

    @requires("per_token")
    def test_vectors_are_those_of_their_tokens(self, pooler: Pooler) -> None:
        """A token's vector does not depend on later tokens."""
        hidden, tokens = prompt(9)
        first = pooler.pool(hidden[:5], [*tokens[:4], MARK])
        whole = pooler.pool(hidden, [*tokens[:4], MARK, *tokens[5:]])
        assert torch.equal(whole[: len(first)], first)

    @requires("per_token")
    def test_steps_are_found(self, plugin: Any) -> None:
        """If the model marks ends of steps, their vectors are among the results, also if there are
        several, and a prompt without any is not an error."""
        pooler = new_pooler(plugin, step_token_id=MARK)
        hidden, _ = prompt(6)
        found = pooler.pool(hidden, [1, MARK, 2, 3, MARK, 4])
        assert all(any(torch.equal(row, end) for row in found) for end in (hidden[1], hidden[4]))
        assert pooler.pool(hidden, [1, 2, 3, 4, 5, 6]).shape[1] == SIZE

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
    def test_narrow_types_lose_little(self, pooler: Pooler, dtype: torch.dtype) -> None:
        """16-bit states give the same as 32-bit ones, except for rounding."""
        hidden, tokens = prompt(40)
        narrow = hidden.to(dtype)
        pooled, wanted = pooler.pool(narrow, tokens), pooler.pool(narrow.float(), tokens)
        torch.testing.assert_close(pooled.float(), wanted.float(), rtol=2e-2, atol=2e-2)

    def test_leaves_its_input_alone(self, pooler: Pooler) -> None:
        """States and tokens are as they were."""
        hidden, tokens = prompt(9)
        before, listed = hidden.clone(), list(tokens)
        pooler.pool(hidden, tokens)
        assert torch.equal(hidden, before) and tokens == listed

    def test_prompts_do_not_mix(self, pooler: Pooler) -> None:
        """A prompt's result does not depend on earlier prompts."""
        first = pooler.pool(*prompt(9)).clone()
        for length in LENGTHS:
            pooler.pool(*prompt(length, seed=1))
        assert torch.equal(pooler.pool(*prompt(9)), first)

    @requires("last_token")
    def test_reads_the_last_token_alone(self, pooler: Pooler) -> None:
        """Whatever comes before the last token may be missing."""
        hidden, tokens = prompt(9)
        whole = pooler.pool(hidden, tokens)
        for start in (3, 8):
            assert torch.equal(pooler.pool(hidden[start:], tokens[start:]), whole)

    @requires("first_token")
    def test_reads_the_first_token_alone(self, pooler: Pooler) -> None:
        """Tokens after the first one may be missing, or anything else."""
        hidden, tokens = prompt(9)
        whole = pooler.pool(hidden, tokens)
        assert torch.equal(pooler.pool(hidden[:1], tokens[:1]), whole)
        assert torch.equal(pooler.pool(hidden[[0, 5]], [tokens[0], tokens[5]]), whole)

    @requires("in_pieces")
    @pytest.mark.parametrize("length", LENGTHS)
    def test_length_alone_changes_nothing(self, pooler: Pooler, length: int) -> None:
        """Of tokens that are all alike comes the same vector however many there are, so that the
        vectors of pieces have one scale."""
        state = prompt(1)[0]
        pooled = pooler.pool(state.expand(length, SIZE), [MARK] * length)
        torch.testing.assert_close(pooled, pooler.pool(state, [MARK]), rtol=1e-5, atol=1e-6)
