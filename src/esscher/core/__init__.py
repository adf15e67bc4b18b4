"""Errors, checks, random streams, records and datasets, and reading untrusted files."""
