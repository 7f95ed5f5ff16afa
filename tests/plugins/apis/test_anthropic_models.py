"""The served names by the anthropic client, and by those of others."""

from __future__ import annotations

from typing import Any

import pytest

from support.anthropic_client import with_anthropic
from support.serving import app_for, send

anthropic = pytest.importorskip("anthropic")


def test_models_by_the_anthropic_client() -> None:
    async def work(client: Any) -> None:
        model, other = [one async for one in client.models.list(limit=1)]
        assert (model.type, model.id, model.display_name) == ("model", "fake", "fake")
        assert (model.lifecycle, model.max_input_tokens) == ("active", 4096)
        assert model.created_at.tzinfo is not None
        assert await client.models.retrieve("fake") == model
        assert [one.id async for one in client.beta.models.list()] == ["fake", other.id]
        after = await client.models.list(after_id="fake", limit=1)
        assert (after.data, after.has_more) == ([other], False)
        before = await client.models.list(before_id=other.id, limit=1)
        assert (before.data, before.has_more) == ([model], False)
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("gone")
        with pytest.raises(anthropic.NotFoundError, match="after_id"):
            await client.models.list(after_id="gone")
        with pytest.raises(anthropic.BadRequestError, match="limit"):
            await client.models.list(limit=0)

    with_anthropic(app_for()[0], work)


def test_other_clients_get_openais_shape() -> None:
    answer = send(app_for()[0], "GET", "/v1/models").json()
    assert (answer["object"], answer["data"][0]["object"]) == ("list", "model")
