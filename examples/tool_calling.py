"""Let the model call a function, run it, and let the model say the result in words.

Needs a server with a tool parser: `dovetail serve --tool-call-parser hermes`.
"""

from __future__ import annotations

import json
import sys

from openai import OpenAI

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str) -> str:
    """Return made-up weather as JSON."""
    return json.dumps({"city": city, "temperature_c": 21, "sky": "sunny"})


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    client = OpenAI(base_url=f"{url}/v1", api_key="not needed")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, temperature=0
    )
    call = first.choices[0].message.tool_calls[0]
    print("call:", call.function.name, call.function.arguments)
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    result = get_weather(**json.loads(call.function.arguments))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = client.chat.completions.create(
        model=model, messages=messages, tools=TOOLS, temperature=0
    )
    print("answer:", second.choices[0].message.content)


if __name__ == "__main__":
    main()
