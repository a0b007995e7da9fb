"""The gates: what must be the same, what may differ and exactly how, what must be refused."""

import os

# Read by OpenMP when llama.cpp loads it. Threads that spin while they wait are many times
# slower as soon as two xdist workers, or anything else, want the same cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
