"""Real text: reading it, cutting it into passages, and the token clouds that models make of it."""
