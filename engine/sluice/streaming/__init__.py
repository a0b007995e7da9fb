"""Expert streaming: where slices lie, how they are read, and the hook that asks for them."""
