"""Files that loads are made from, read and checked: timed traces, data sets, lists of lengths."""
