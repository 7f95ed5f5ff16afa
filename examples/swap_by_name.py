"""Choose implementations by name: a scheduling policy from a file beside this one.

Every choice-valued flag takes a registered name, name@distribution, module:Class or file.py:Class.
"""

from __future__ import annotations

from pathlib import Path

from dovetail import LLM, SamplingParams

POLICY = Path(__file__).with_name("own_policy.py")


def main() -> None:
    llm = LLM(attention_backend="torch_sdpa", scheduling_policy=f"{POLICY}:ShortestFirst")
    prompts = ["The capital of France is", "Water is made of hydrogen and"]
    for result in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8)):
        print(repr(result.outputs[0].text))


if __name__ == "__main__":
    main()
