"""KV connectors: where blocks of the KV cache are kept beside the device."""
