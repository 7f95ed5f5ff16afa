"""Measure the demo model on held-out phrasings, in process or through an OpenAI endpoint.

Prints a table and can write JSON. Exit status 1 when fewer than 95 % of the facts are right. This
module does not know how the cases are made; `held_out.py` does.
"""

import argparse
import json
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

from held_out import Case, all_cases

DEFAULT_FOLDER = Path(__file__).parents[2] / "core" / "dovetail" / "demo_model"
FACT_GOAL = 0.95
ANSWER_TOKENS = 128
BATCH_SIZE = 64
TIMEOUT_S = 120

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Answer = Callable[[list[Chat], list[Tools], list[bool]], list[str]]


def in_process(folder: Path, threads: int) -> Answer:
    """Answers by transformers: bf16 weights computed in float32, greedy, in batches."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def write(prompts: list[str]) -> list[str]:
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=ANSWER_TOKENS)
        new_tokens = output[:, inputs["input_ids"].shape[1] :]
        return list(tokenizer.batch_decode(new_tokens, skip_special_tokens=True))

    def answer(conversations: list[Chat], tools: list[Tools], thinking: list[bool]) -> list[str]:
        prompts = [
            tokenizer.apply_chat_template(
                chat,
                tools=listed,
                add_generation_prompt=True,
                tokenize=False,
                enable_thinking=think,
            )
            for chat, listed, think in zip(conversations, tools, thinking, strict=True)
        ]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            for index, text in zip(
                chosen, write([prompts[index] for index in chosen]), strict=True
            ):
                texts[index] = text
        return texts

    return answer


def as_text(message: dict[str, Any]) -> str:
    """An API message back as the model wrote it: thought, words, calls."""
    thought = message.get("reasoning_content") or message.get("reasoning") or ""
    text = f"<think>\n{thought.strip()}\n</think>\n\n" if thought.strip() else ""
    text += message.get("content") or ""
    for call in message.get("tool_calls") or []:
        function = call["function"]
        text += (
            f'<tool_call>\n{{"name": {json.dumps(function["name"])}, '
            f'"arguments": {function["arguments"]}}}\n</tool_call>'
        )
    return text


def over_http(base_url: str, model: str, key: str, workers: int) -> Answer:
    """Answers by any OpenAI endpoint, several requests at a time."""

    def one(chat: Chat, tools: Tools, thinking: bool) -> str:
        body = {
            "model": model,
            "messages": chat,
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
            "chat_template_kwargs": {"enable_thinking": thinking},
        }
        if tools:
            body["tools"] = tools
        request = urllib.request.Request(
            base_url.rstrip("/") + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
            return as_text(json.load(reply)["choices"][0]["message"])

    def answer(conversations: list[Chat], tools: list[Tools], thinking: list[bool]) -> list[str]:
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, conversations, tools, thinking))

    return answer


def score(cases: list[Case], texts: list[str]) -> dict[str, dict[str, Any]]:
    """Right answers per group."""
    rows: dict[str, dict[str, Any]] = {}
    marked = sorted(
        ((case.group, case.check(text)) for case, text in zip(cases, texts, strict=True))
    )
    for group, entries in groupby(marked, key=lambda entry: entry[0]):
        results = [right for _, right in entries]
        rows[group] = {
            "right": sum(results),
            "cases": len(results),
            "share": round(sum(results) / len(results), 4),
        }
    return rows


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    """The table for people."""
    print("| group | right | cases | share |\n|---|---:|---:|---:|")
    for group, row in rows.items():
        print(f"| {group} | {row['right']} | {row['cases']} | {row['share']:.1%} |")


def print_wrong(cases: list[Case], texts: list[str]) -> None:
    """Every wrong answer, for a person who wants to improve the data."""
    for case, text in zip(cases, texts, strict=True):
        if not case.check(text):
            print(json.dumps([case.group, case.messages[-1]["content"], text], ensure_ascii=False))


def options_from_command_line() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--base-url", default="", help="OpenAI endpoint, such as http://host/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--key", default="none")
    parser.add_argument("--workers", type=int, default=16, help="requests at a time over HTTP")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--wrong", action="store_true", help="print the wrong answers")
    return parser.parse_args()


def main() -> int:
    """Ask every case and print the table."""
    options = options_from_command_line()
    answer = (
        over_http(options.base_url, options.model, options.key, options.workers)
        if options.base_url
        else in_process(options.folder, options.threads)
    )
    cases, started = all_cases(), time.monotonic()
    texts = answer(
        [case.messages for case in cases],
        [case.tools for case in cases],
        [case.thinking for case in cases],
    )
    rows = score(cases, texts)
    if options.wrong:
        print_wrong(cases, texts)
    print_table(rows)
    print(f"{len(cases)} cases in {time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0 if rows["facts"]["share"] >= FACT_GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
