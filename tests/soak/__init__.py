"""Load and faults: runs that are killed, starved, confused and damaged, round after round."""
