"""Ask a server what held-out pictures show, and count the right answers.

    dovetail serve /tmp/tiny-vision
    python examples/tiny_vision/ask.py [--url http://127.0.0.1:8000]

prints a line per wrong answer, then the share of right ones. It uses OpenAI's client.
"""

import argparse
import sys
from random import Random

import openai
from pictures import QUESTIONS, as_url, picture, scene

SEED = 77
BAR = 0.9


def main() -> int:
    """Ask; the exit status is 1 where fewer are right than should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=120)
    asked = parser.parse_args()
    client = openai.OpenAI(base_url=f"{asked.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    rng, right = Random(SEED), 0
    for number in range(asked.count):
        one = scene(rng, held_out=True)
        question = QUESTIONS[number % len(QUESTIONS)]
        image = {"type": "image_url", "image_url": {"url": as_url(picture(one, rng))}}
        content = [{"type": "text", "text": question}, image]
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            temperature=0.0,
            max_tokens=16,
        )
        told = (answer.choices[0].message.content or "").strip()
        right += told == one.answer(question)
        if told != one.answer(question):
            print(f"{question} {one.answer(question)}; told: {told}")
    print(f"{right} of {asked.count} are right")
    return 0 if right >= BAR * asked.count else 1


if __name__ == "__main__":
    sys.exit(main())
