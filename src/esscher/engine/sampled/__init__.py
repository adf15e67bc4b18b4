"""Attention over samples of a model's keys: how far its outputs are from those over all keys."""
