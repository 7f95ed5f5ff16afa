"""Reads and rewrites regular expressions, JSON schemas and GBNF, and makes grammars of them.

A library next to the kernels: it knows nothing of dovetail, and needs only Python.
`rewriting.pipeline.rewritten` reduces a JSON schema to few keywords, `json_grammar.JsonGrammar`
makes rules of it, `regex.parse` reads a regular expression, `gbnf_reader.read_gbnf` a GBNF grammar.
"""
