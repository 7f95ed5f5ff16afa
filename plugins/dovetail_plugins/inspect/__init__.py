"""`dovetail inspect`: what a checkpoint holds and what it would take, from headers alone.

Imports no torch and reads no weights; the model is made without memory, in a separate process
(`trial`), to see what it would refuse. Knows no file format and no quantization: load formats tell
the headers, quantization methods what becomes of a layer.
"""
