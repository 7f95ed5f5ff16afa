"""Answers held to a JSON schema, to a pattern and to a list of words, without a server.

`python examples/structured_output.py` runs the bundled demo model.
"""

from __future__ import annotations

import json

from dovetail import LLM, SamplingParams
from dovetail.interfaces.data.constraint import Choice, Constraint, JsonSchema, Literal, Regex

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "is_capital": {"type": "boolean"}},
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, Constraint] = {
    "schema": JsonSchema(CITY),
    "pattern": Regex(r"[A-Z][a-z]+, \d{4}"),
    "choice": Choice((Literal("yes"), Literal("no"))),
}


def main() -> None:
    """Print one answer of each constraint."""
    with LLM() as llm:
        for name, constraint in CONSTRAINTS.items():
            params = SamplingParams(
                temperature=0, max_tokens=60, constraint=llm.compile_constraint(constraint)
            )
            messages = [{"role": "user", "content": "What is the capital of France?"}]
            (result,) = llm.chat(messages, params, use_tqdm=False)
            text = result.outputs[0].text
            print(f"{name}: {json.loads(text) if name == 'schema' else text}")


if __name__ == "__main__":
    main()
