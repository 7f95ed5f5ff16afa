"""`dovetail route` and prefill servers that publish KV events: a prompt goes where it is cached."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_event_publisher import AllBlocksCleared, BlockStored, EventBatch
from dovetail.registry.options import options_for
from dovetail_plugins.gateway.prefill_choice import prefill_choice
from dovetail_plugins.kv_event_publishers.zmq import ZmqPublisher
from support.fake_upstream import FakeServer
from support.inside import known_blocks_of, router_in


def stored(tokens: Sequence[int]) -> BlockStored:
    """Return the event of a prompt's first block."""
    return BlockStored(
        block_hashes=(1,),
        parent_block_hash=None,
        token_ids=tuple(tokens[:16]),
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def test_a_prompt_goes_where_a_server_says_that_it_is_cached() -> None:
    servers: Any = [FakeServer(f"http://127.0.0.1:{port}", text="") for port in (1, 2, 3)]
    text = "a prompt of more than sixteen letters"
    with tempfile.TemporaryDirectory(prefix="kv") as folder:
        flags = [json.dumps(ZmqPublisher.sample_options(f"{folder}/{n}")) for n in range(3)]
        for number in range(3):
            Path(folder, str(number)).mkdir()
        publisher = ZmqPublisher(options_for(ZmqPublisher, json.loads(flags[2])), 0)
        events = (AllBlocksCleared(), stored([ord(letter) for letter in text]))
        publisher.publish(EventBatch(ts=0.0, events=events))
        choice = prefill_choice(servers, flags, 16)
        try:

            async def chosen(**fields: Any) -> Any:
                ids = await choice.tokens_of(fields, [])
                return choice.pick(ids, "", ())

            deadline_s = time.monotonic() + 30
            while not known_blocks_of(router_in(choice)).informed:
                assert time.monotonic() < deadline_s
                publisher.publish(EventBatch(ts=0.0, events=()))
                asyncio.run(chosen(prompt=text))
                time.sleep(0.01)
            ids = [ord(letter) for letter in text]
            for fields in ({"prompt": text}, {"prompt": ids}):
                assert {asyncio.run(chosen(**fields)).url for _ in range(6)} == {servers[2].url}
            choice.began(servers[2], 1000)
            assert asyncio.run(chosen(prompt=text)) is not servers[2]
            choice.ended(servers[2], 1000)
            assert choice.pick(tuple(ids), "", servers[1:]) is servers[0]
            assert choice.pick(tuple(ids), "", servers) is None
        finally:
            choice.close()
            publisher.close()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (("{}", "{}"), "2 are given for 3"),
        (("[1]",), "not a JSON object"),
        (('{"publisher": "null"}',), "nobody can listen"),
        (('{"endpoint": "tcp://far:1"}',), "nobody can listen"),
        (('{"colour": 1}',), "colour"),
    ],
)
def test_events_that_cannot_be_read_say_why(events: tuple[str, ...], said: str) -> None:
    servers: Any = [FakeServer(f"http://127.0.0.1:{port}") for port in (1, 2, 3)]
    with pytest.raises(ConfigError, match=said):
        prefill_choice(servers, events, 16)
