"""Tails of clouds of tokens: worst directions, sub-Gaussian parameters, types, verdicts."""
