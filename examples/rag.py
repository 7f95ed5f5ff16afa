"""Answer a question from a folder of documents: embed, search, rerank, generate. No server.

`python examples/rag.py "How do I stop a server?"` reads this repository's docs/ with the bundled
demo model, which is small: name better ones. `--embedder` makes vectors (all-MiniLM-L6-v2, ...),
`--ranker` scores pairs of texts (a cross-encoder such as ms-marco-MiniLM-L6-v2, ...), `--chat`
answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dovetail import LLM, SamplingParams

DOCS = Path(__file__).resolve().parents[1] / "docs"
NUM_FOUND, NUM_READ = 20, 3


def passages(folder: Path) -> list[str]:
    """Return the paragraphs of all Markdown files, each behind the title of its file."""
    found = []
    for file in sorted(folder.rglob("*.md")):
        title, *parts = file.read_text(encoding="utf-8").split("\n\n")
        texts = (" ".join(part.split()) for part in parts)
        found += [f"{title.strip('# ')}: {text}" for text in texts if 40 < len(text) < 1000]
    return found


def nearest(embedder: str | None, texts: Sequence[str], question: str) -> list[str]:
    """Return the texts whose vectors are nearest to the question's, the nearest first."""
    convert = "embed" if embedder is None else "auto"  # the demo model was made to generate
    with LLM(model=embedder, convert=convert) as llm:
        results = llm.embed([*texts, question], truncate_prompt_tokens=-1)
    vectors = np.array([result.outputs.embedding for result in results])
    order = np.argsort(vectors[:-1] @ vectors[-1])[::-1]
    return [texts[at] for at in order[:NUM_FOUND]]


def reranked(ranker: str, texts: Sequence[str], question: str) -> list[str]:
    """Return the texts in the order of their scores with the question, the best first."""
    with LLM(model=ranker) as llm:
        results = llm.score(question, list(texts), truncate_prompt_tokens=-1)
    order = np.argsort([result.outputs.score for result in results])[::-1]
    return [texts[at] for at in order]


def answer(chat: str | None, texts: Sequence[str], question: str) -> str:
    """Return an answer to the question by what the texts say."""
    content = "\n\n".join([*texts, f"Answer by the text above: {question}"])
    with LLM(model=chat) as llm:
        params = SamplingParams(temperature=0, max_tokens=100)
        (result,) = llm.chat([{"role": "user", "content": content}], params)
    return result.outputs[0].text


def main() -> None:
    """Print what was read, then the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="How do I stop a server?")
    parser.add_argument("--docs", type=Path, default=DOCS)
    parser.add_argument("--embedder", help="model that makes vectors")
    parser.add_argument("--ranker", help="cross-encoder; without one the nearest texts are read")
    parser.add_argument("--chat", help="model that answers")
    asked = parser.parse_args()
    found = nearest(asked.embedder, passages(asked.docs), asked.question)
    if asked.ranker:
        found = reranked(asked.ranker, found, asked.question)
    for text in found[:NUM_READ]:
        print(f"read: {text}")
    print(f"answer: {answer(asked.chat, found[:NUM_READ], asked.question)}")


if __name__ == "__main__":
    main()
