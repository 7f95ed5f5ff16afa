"""Regular expressions, JSON schemas and GBNF, read, rewritten and put into grammars.

A library beside the kernels: it knows nothing of dovetail, and needs nothing but Python.
`rewriting.pipeline.rewritten` puts a JSON schema in few keywords, `json_grammar.JsonGrammar` makes
rules of it, `regex.parse` reads a regular expression, `gbnf_reader.read_gbnf` a GBNF grammar.
"""
