"""`dovetail quantize`: converts a full-precision checkpoint to a quantized one, layer by layer.

Layouts and algorithms are plugins of the kind "quantizer".
"""
