"""The seam to llama.cpp: the only folder that imports ``llama_cpp`` or ``ctypes``."""
