"""What this build can do for a model: kernels, width classes, numerics profiles, drafts."""
