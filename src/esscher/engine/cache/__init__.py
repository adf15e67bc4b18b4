"""Key caches that hold part of the tokens: what each key head keeps, and attention on it."""
