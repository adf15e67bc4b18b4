"""Studies and their runs: everything that is the same for all of them."""
