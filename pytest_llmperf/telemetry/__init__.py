"""What is measured beside the load: memory and CPU of the server's processes, memory of its GPUs."""
