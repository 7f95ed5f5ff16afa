"""The public conformance kit: run by `dovetail plugins check`, or by pytest with
`-p dovetail_testing.plugin --pyargs dovetail_testing.contracts`. Importing it imports nothing."""
