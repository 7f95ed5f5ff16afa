"""Ask a server what is said in held-out sounds, and count the right answers.

    dovetail serve /tmp/tiny-speech
    python examples/tiny_speech/ask.py [--url http://127.0.0.1:8000]

prints a line per sound that was misheard, then the share of right ones. It uses OpenAI's client.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import openai
from spoken import write_examples

SEED = 77
BAR = 0.9


def main() -> int:
    """Ask; the exit status is 1 where fewer are right than should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    client = openai.OpenAI(base_url=f"{asked.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    right = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, said in write_examples(Path(folder), asked.count, SEED):
            with path.open("rb") as file:
                heard = client.audio.transcriptions.create(
                    model=model, file=file, language="en", temperature=0.0
                )
            right += heard.text == said
            if heard.text != said:
                print(f"said: {said}; heard: {heard.text}")
    print(f"{right} of {asked.count} are right")
    return 0 if right >= BAR * asked.count else 1


if __name__ == "__main__":
    sys.exit(main())
