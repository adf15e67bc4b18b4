"""Laws, heads, limits, theory and statistics; no model, no file."""
