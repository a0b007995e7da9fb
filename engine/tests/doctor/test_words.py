from __future__ import annotations

import dataclasses

from sluice.decoding.widths import KernelClasses
from sluice.doctor.build import Build, Switch
from sluice.doctor.diagnosis import diagnose
from sluice.doctor.examination import Examination
from sluice.doctor.streaming import Streaming
from sluice.doctor.words import lines
from sluice.streaming.plan import LayerPlan, StreamingPlan

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
MIB = 1 << 20
PLAN = StreamingPlan(
    layers=(
        LayerPlan(1, False, 8, 3 * MIB, 3 * MIB + 4096),
        LayerPlan(2, False, 16, 2 * MIB, 2 * MIB + 4096),
        LayerPlan(3, True, 8, 5 * MIB, 5 * MIB + 4096),
    ),
    n_used=2,
    trunk_dense_bytes=7 * MIB,
    head_dense_bytes=MIB // 2,
)
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
    streaming=Streaming(4, 1, PLAN),
)


def test_a_screen_of_text() -> None:
    text = lines(FOUND)
    assert "kernels sgemm         in this build, can be switched off" in text
    assert "call slots not found  mmap" in text
    assert "model: m.gguf, qwen35moe, an MTP head" in text
    assert "  F32   mul_mat                   1 | 2 to 3  1 to 9" in text
    assert "  F16   flash_attn 512 positions  1 to 3      -" in text
    assert "  F16   mul_mat cached keys       -           1 to 3" in text
    at = text.index("  default           plain = draft 1 to 8")
    assert text[at + 1 : at + 3] == ["  decode-invariant  plain = draft 1 to 8", ""]
    assert "  invariant         does not hold  no slot; build it otherwise" in text


def test_classes_that_could_not_be_found_are_not_invented() -> None:
    text = lines(
        dataclasses.replace(FOUND, as_is=(), switched_off=(), unknown="no libggml-cpu", threads=2)
    )
    assert "width classes: not found: no libggml-cpu" in text
    assert not [line for line in text if "drafts that" in line]


def test_what_would_be_streamed() -> None:
    text = lines(FOUND)
    at = text.index("streaming, with --moe-stream:")
    assert text[at + 1 :] == [
        "  experts     2 layers of 8 to 16, 2 used a token; 56.00 MiB in all",
        "  an expert   2.00 MiB to 3.00 MiB",
        "  a layer     24.00 MiB to 32.00 MiB",
        "  a token     10.00 MiB, read for every token where nothing is cached",
        "  resident    7.00 MiB of weights that are not streamed",
        "  with --mtp  10.00 MiB more a drafted token, of 40.00 MiB more in all;"
        " 0.50 MiB more resident",
        "cache sizes that make sense with --ubatch 4, and what they hold:",
        "  --cache-mb 25  smallest  the experts of 2.4 tokens",
        "  --cache-mb 57  all       the experts of 5.6 tokens",
    ]


def test_shards_no_head_and_the_size_of_auto() -> None:
    streaming = Streaming(1, 3, PLAN.without_head(), auto_cache_bytes=30 * MIB)
    text = lines(dataclasses.replace(FOUND, streaming=streaming))
    assert "  experts    2 layers of 8 to 16, 2 used a token; 56.00 MiB in all, in 3 shards" in text
    assert not [line for line in text if "with --mtp" in line]
    assert text[-4:] == [
        "  --cache-mb 11    smallest               the experts of 1.0 tokens",
        "  --cache-mb 19    a third                the experts of 1.9 tokens",
        "  --cache-mb 57    all                    the experts of 5.6 tokens",
        "  --cache-mb auto  at most 30.00 MiB now  the experts of 3.0 tokens",
    ]


def test_a_model_that_cannot_be_streamed_is_one_line() -> None:
    text = lines(
        dataclasses.replace(FOUND, streaming=Streaming(512, 1, refusal="it has no experts"))
    )
    assert text[-2:] == ["", "streaming: not this model: it has no experts"]
