"""Answer a batch of chats in this process, with no server.

Run it with no arguments for the bundled demo model, or name a model: `offline_chat.py MODEL`.
"""

from __future__ import annotations

import sys

from dovetail import LLM, SamplingParams

QUESTIONS = ("What is the capital of France?", "What is 7 plus 5?", "Who are you?")


def main() -> None:
    llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else None)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    answers = llm.chat(chats, SamplingParams(temperature=0, max_tokens=64))
    for question, answer in zip(QUESTIONS, answers, strict=True):
        print(f"{question}\n  {answer.outputs[0].text}")


if __name__ == "__main__":
    main()
