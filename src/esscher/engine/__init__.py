"""Attention over arrays, sparse patterns, transformers models and text."""
