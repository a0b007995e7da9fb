"""Decoding: a session over one model, plain and speculative steps, greedy and sampled."""
