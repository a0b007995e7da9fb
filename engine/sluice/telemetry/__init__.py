"""What a run leaves behind: evidence of what it computed, and metrics of what it cost."""
