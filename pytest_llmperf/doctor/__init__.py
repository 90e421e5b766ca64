"""What this machine's client can measure: the load against a server whose every send is known."""
