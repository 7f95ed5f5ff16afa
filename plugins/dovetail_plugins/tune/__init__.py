"""`dovetail tune`: measures settings of an engine on this machine, and keeps what is faster."""
