"""`dovetail inspect`: the contents and memory needs of a checkpoint, from file headers alone.

Imports no torch and reads no weights. A separate process (`trial`) creates the model without memory
to see whether it would be refused. Independent of file formats and quantization: load formats read
the headers, and quantization methods describe the layers.
"""
