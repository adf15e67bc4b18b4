"""Real models: loading them, and seeing or replacing what their attention computes."""
