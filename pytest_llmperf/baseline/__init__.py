"""Stored measurements to compare with: their format, their place, their safe-keeping and the choice among them."""
