"""Adapters on a rank: read from files, sharded, and copied into the slots of layers."""
