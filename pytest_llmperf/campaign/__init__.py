"""The launches of all selected tests, shared, and what they are compared with."""
