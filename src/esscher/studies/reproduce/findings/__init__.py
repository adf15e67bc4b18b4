"""Pages of findings, made from stored runs."""
