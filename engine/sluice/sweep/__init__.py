"""Sweep draft lengths: arms by workloads, a row a request, and what the clock says of them."""
