"""Small tokenizers of the `tokenizers` library, one of each common build."""

from __future__ import annotations

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dovetail_testing.tiny.models import TRAINING_TEXT

SPECIAL = ["<|begin|>", "<|end|>", "<unk>", "<s>", "</s>"]


def byte_level(template: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    return tokenizer


def sentencepiece_like() -> Tokenizer:
    """Pieces with a space mark, bytes as a fallback, a leading space that decoding drops."""
    letters = sorted(set("".join(TRAINING_TEXT)) - {" "})
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *letters]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "d"), ("▁d", "o"), ("▁do", "g")]
    vocab += [a + b for a, b in merges]
    tokenizer = Tokenizer(
        models.BPE(
            {token: i for i, token in enumerate(vocab)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    return tokenizer
