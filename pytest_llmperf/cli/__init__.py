"""The command ``pytest-llmperf``: one module per command group."""
