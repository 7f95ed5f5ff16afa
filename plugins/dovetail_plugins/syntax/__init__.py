"""Building blocks of tool parsers: reading JSON calls, whole and half written. Knows no family."""
