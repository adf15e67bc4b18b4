"""Laws, heads, limits, theory, simulation and statistics; no model, no file."""
