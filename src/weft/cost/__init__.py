"""What work costs on a target, and what it costs at least: operations, bytes, launches."""
