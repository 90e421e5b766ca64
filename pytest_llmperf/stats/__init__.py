"""Statistics on plain numbers; the only place that imports scipy, and only inside functions."""
