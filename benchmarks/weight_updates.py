"""What it costs a running engine to take new weights from shared memory, against a plain copy.

A random model of Llama's shape in bfloat16 runs in this process, and a trainer's weights lie in
shared memory. Each round copies all bytes from there into memory that has been written before (the
floor of any update: every byte is read and written once), then updates the engine. Both are
processor time of this process in the same round; printed is the median of their ratios.

    python benchmarks/weight_updates.py [--layers 12] [--rounds 7] [--quantization int8]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dovetail import LLM
from dovetail_plugins.weight_transfer.shared_weights import SharedWeights
from dovetail_testing.tiny.models import write_tiny_checkpoint


def main() -> None:
    """Write the model, run it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2816)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtype", default="bfloat16", help="of the trainer's tensors")
    parser.add_argument("--quantization", help="of the engine")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {
            "hidden_size": args.hidden,
            "intermediate_size": args.inner,
            "num_hidden_layers": args.layers,
            "vocab_size": args.vocab,
            "num_attention_heads": args.hidden // 64,
            "num_key_value_heads": args.hidden // 128,
            "head_dim": 64,
            "dtype": args.dtype,
        }
        path = write_tiny_checkpoint(Path(folder) / "model", "LlamaForCausalLM", **sizes)
        _measure(str(path), args)


def _measure(path: str, args: argparse.Namespace) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, args.dtype))
    model.save_pretrained(path)
    flags: dict[str, Any] = {
        "device": "cpu",
        "kv_cache_memory_bytes": 16 << 20,
        "max_model_len": 128,
    }
    flags |= {"quantization": args.quantization, "use_tqdm_on_load": False, "weight_cache": False}
    with LLM(path, **flags) as llm, SharedWeights() as shared:
        key = shared.write(model.named_parameters())
        source = torch.from_file(
            shared.path, size=Path(shared.path).stat().st_size, dtype=torch.uint8
        )
        target = torch.zeros_like(source)
        update = {"path": shared.path, "key": key}
        ratios = []
        print(
            f"{source.nbytes >> 20} MiB of {args.dtype}, engine: {args.quantization or 'as it is'}"
        )
        for number in range(args.rounds):
            copied_s = _seconds(lambda: target.copy_(source))
            updated_s = _seconds(lambda: llm.collective_rpc("update_weights", kwargs=update))
            ratios.append(updated_s / copied_s)
            print(
                f"round {number}: copy {copied_s * 1e3:.0f} ms, update {updated_s * 1e3:.0f} ms, "
                f"{ratios[-1]:.2f} times",
                flush=True,
            )
        print(
            f"median {statistics.median(ratios):.2f} times, {min(ratios):.2f} to {max(ratios):.2f}"
        )


def _seconds(act: Callable[[], Any]) -> float:
    """Return the processor time of this process while it acts."""
    start_s = time.process_time()
    act()
    return time.process_time() - start_s


if __name__ == "__main__":
    main()
