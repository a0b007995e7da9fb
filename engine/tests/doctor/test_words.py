from __future__ import annotations

import dataclasses

from sluice.decoding.widths import KernelClasses
from sluice.doctor.build import Build, Switch
from sluice.doctor.diagnosis import diagnose
from sluice.doctor.examination import Examination
from sluice.doctor.words import lines

BUILD = Build(
    llama_cpp_python="0.0",
    system_info="CPU : AVX2 = 1",
    platform="linux",
    has_llamafile=True,
    openmp=False,
    switches=(Switch("sgemm", True, True), Switch("tiled", False, False)),
    slots={"llamafile_sgemm": True, "mmap": False},
)
ROUTER = KernelClasses("mul_mat", "F32", "blk.0.router", ((1,), (2, 3)))
FLASH = KernelClasses("flash_attn", "F16", "attention, 512 positions", ((1, 2, 3),))
KEYS = KernelClasses("mul_mat", "F16", "attention", ((1, 2, 3),))
QUIET = dataclasses.replace(ROUTER, classes=((1, 2, 3, 4, 5, 6, 7, 8, 9),))
FOUND = Examination(
    build=BUILD,
    model="m.gguf",
    architecture="qwen35moe",
    has_head=True,
    threads=1,
    as_is=(ROUTER, FLASH),
    switched_off=(QUIET, KEYS),
    unknown=None,
    profiles=(
        diagnose("default", None, [QUIET]),
        diagnose("decode-invariant", None, [QUIET]),
        diagnose("invariant", ("no slot", "build it otherwise"), []),
    ),
)


def test_a_screen_of_text() -> None:
    text = lines(FOUND)
    assert "kernels sgemm         in this build, can be switched off" in text
    assert "call slots not found  mmap" in text
    assert "model: m.gguf, qwen35moe, an MTP head" in text
    assert "  F32   mul_mat                   1 | 2 to 3  1 to 9" in text
    assert "  F16   flash_attn 512 positions  1 to 3      -" in text
    assert "  F16   mul_mat cached keys       -           1 to 3" in text
    assert text[-2:] == [
        "  default           plain = draft 1 to 8",
        "  decode-invariant  plain = draft 1 to 8",
    ]
    assert "  invariant         does not hold  no slot; build it otherwise" in text


def test_classes_that_could_not_be_found_are_not_invented() -> None:
    text = lines(
        dataclasses.replace(FOUND, as_is=(), switched_off=(), unknown="no libggml-cpu", threads=2)
    )
    assert "width classes: not found: no libggml-cpu" in text
    assert not [line for line in text if "drafts that" in line]
