"""What plugins and core hand to each other: plain data, imported by the interfaces."""
