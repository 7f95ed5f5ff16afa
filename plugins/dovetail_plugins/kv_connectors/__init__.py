"""KV connectors: store blocks of the KV cache outside the device."""
