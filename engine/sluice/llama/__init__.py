"""The seam to llama.cpp: the only folder that imports llama_cpp or ctypes."""

from sluice.llama import waiting

waiting.shorten_where_cores_are_few()
