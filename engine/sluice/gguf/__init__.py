"""What a gguf file says of itself: metadata and where each tensor lies."""
