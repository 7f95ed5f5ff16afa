"""`dovetail quantize`: a full-precision checkpoint becomes a quantized one, a layer at a time.

Knows no layout and no algorithm: those are plugins of the kind "quantizer".
"""
