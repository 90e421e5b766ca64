"""Starting, watching and ending the server under test."""
