"""Adapters: what reads LoRA and its kin, and vectors that stand before a prompt."""
