"""The public conformance kit: run by `dovetail plugins check`, or by pytest with
`-p dovetail.testing.plugin --pyargs dovetail.testing.contracts`. Importing it imports nothing."""
