from __future__ import annotations

from sluice.doctor.build import examine_build, flag
from sluice.llama import kernels


def test_features_are_read_from_the_line_of_ggml() -> None:
    line = "CPU : AVX2 = 1 | LLAMAFILE = 1 | OPENMP = 1"
    assert (flag(line, "OPENMP"), flag(line, "AVX512")) == (True, False)
    assert flag("Metal : EMBED_LIBRARY = 1 | CPU : NEON = 1", "NEON")
    assert flag("", "OPENMP") is None


def test_the_build_of_this_process() -> None:
    build = examine_build()
    assert build.llama_cpp_python
    assert {switch.name for switch in build.switches} == set(kernels.KERNELS)
    assert {"llamafile_sgemm", "mmap"} <= set(build.slots)
    assert build.has_llamafile == next(s for s in build.switches if s.name == "sgemm").is_present
