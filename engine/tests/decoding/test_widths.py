from __future__ import annotations

import pytest

from sluice.decoding import widths
from sluice.decoding.widths import KernelClasses, classify, spelled
from sluice.gguf.header import Header
from sluice.llama import kernels

from .models import weights_only


def test_widths_are_grouped_by_what_they_come_to() -> None:
    assert classify(lambda n: n >= 8, range(1, 11)) == (tuple(range(1, 8)), (8, 9, 10))
    assert classify(lambda n: n % 2, range(1, 5)) == ((1, 3), (2, 4))


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (((1,), (2, 3, 4)), "1 | 2 to 4"),
        (((1, 3), (2, 4, 5)), "1, 3 | 2, 4 to 5"),
        (((1, 2, 3),), "1 to 3"),
    ],
)
def test_classes_are_spelled_as_ranges(classes: widths.Classes, words: str) -> None:
    assert spelled(classes) == words


def test_one_class_is_enough_for_mul_mat_but_not_where_rows_are_routed() -> None:
    classes = ((1, 2, 3), (4, 5))
    dense = KernelClasses("mul_mat", "Q4_K", "w", classes)
    routed = KernelClasses("mul_mat_id", "Q4_K", "w", classes)
    assert dense.same(4, 5)
    assert not dense.same(3, 4)
    assert routed.same(2, 3)
    assert not routed.same(4, 5)  # an expert of the one may get 3 rows where that of the other 4
    assert routed.same(5, 5)


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return weights_only(tmp_path_factory.mktemp("w") / "m.gguf")


def test_samples_are_one_a_product_type_and_shape(header: Header) -> None:
    found = {pair: [i.name for i in infos] for pair, infos in widths.samples(header).items()}
    assert found == {
        ("mul_mat", "F32"): ["blk.0.ffn_gate_inp.weight"],
        ("mul_mat", "Q8_0"): ["output.weight", "blk.0.attn_k.weight"],
        ("mul_mat_id", "Q8_0"): ["blk.0.ffn_up_exps.weight"],
    }


def test_real_kernels_have_one_class_once_they_are_switched_off(header: Header) -> None:
    with kernels.switched_off(kernels.KERNELS):
        found = widths.examine(header, flash_attn=False, at=range(1, 11))
    assert {(k.kernel, k.type_name) for k in found} == {
        ("mul_mat", "F32"), ("mul_mat", "Q8_0"), ("mul_mat_id", "Q8_0"), ("mul_mat", "F16"),
    }  # fmt: skip
    assert [k for k in found if len(k.classes) > 1] == []


@pytest.mark.skipif(not kernels.has_llamafile(), reason="this build has no llamafile")
def test_the_router_of_a_stock_build_parts_one_row_from_many(header: Header) -> None:
    found = widths.examine(header, flash_attn=True, at=range(1, 10))
    router = next(k for k in found if k.type_name == "F32")
    assert router.classes == ((1,), tuple(range(2, 10)))


def test_attention_is_examined_as_fused_or_as_a_product(header: Header) -> None:
    fused = widths.examine(header, flash_attn=True, at=(1, 2, 63, 64))
    assert [k.sample for k in fused if k.kernel == "flash_attn"] == [
        "attention, 256 positions",
        "attention, 512 positions",
    ]
    assert not [k for k in fused if k.type_name == "F16" and k.kernel == "mul_mat"]


def test_what_is_not_asked_for_is_not_run(header: Header) -> None:
    found = widths.examine(header, flash_attn=False, at=(1, 2), only=lambda _pair: False)
    assert found == []
