"""llama.cpp's OpenAI server from the wheel `xllamacpp`, until it is terminated.

`python -P -m benchmarks.peers.llamacpp_server GGUF PORT SLOTS TOKENS_EACH THREADS`; serve.py starts
it in that wheel's venv, the checkout on its path.
"""

from __future__ import annotations

import sys
import threading

from benchmarks.peers.drivers.xllamacpp import engine_of


def main() -> None:
    """Serve for ever."""
    model, *numbers = sys.argv[1:]
    port, num_slots, tokens_each, num_threads = (int(number) for number in numbers)
    server = engine_of(model, num_slots, tokens_each, num_threads, port)
    print("listening on", server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
