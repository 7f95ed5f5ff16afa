"""Write down what is said while it is said: samples come in, a line for each turn goes out.

arecord -q -t raw -f S16_LE -r 24000 -c 1 | python examples/live_transcript.py
ffmpeg -v error -i said.mp3 -f s16le -ar 24000 -ac 1 - | python examples/live_transcript.py
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from typing import Any

from openai import AsyncOpenAI

TENTH_BYTES = 4800


async def send(session: Any) -> None:
    """Send the samples as they come, then silence, which ends the last turn."""
    while data := await asyncio.to_thread(sys.stdin.buffer.read, TENTH_BYTES):
        await session.input_audio_buffer.append(audio=base64.b64encode(data).decode())
    silence = base64.b64encode(bytes(10 * TENTH_BYTES)).decode()
    await session.input_audio_buffer.append(audio=silence)
    await session.input_audio_buffer.clear()


async def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8000"
    key = os.environ.get("OPENAI_API_KEY", "none")
    client = AsyncOpenAI(websocket_base_url=f"{address}/v1", api_key=key)
    async with client.realtime.connect(extra_query={"intent": "transcription"}) as session:
        sending = asyncio.create_task(send(session))
        num_open, is_over = 0, False
        while num_open or not is_over:
            event = await session.recv()
            if event.type == "input_audio_buffer.committed":
                num_open += 1
            elif event.type == "input_audio_buffer.cleared":
                is_over = True
            elif event.type == "conversation.item.input_audio_transcription.completed":
                print(event.transcript, flush=True)
                num_open -= 1
            elif event.type.endswith(("failed", "error")):
                sys.exit(event.error.message)
        await sending


if __name__ == "__main__":
    asyncio.run(main())
