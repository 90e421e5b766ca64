"""Results in the forms of other tools."""
