"""Pages of docs/findings, made from stored runs."""
