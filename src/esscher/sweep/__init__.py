"""Monte Carlo measurement of errors."""
