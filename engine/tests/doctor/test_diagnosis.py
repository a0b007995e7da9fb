from __future__ import annotations

from sluice.decoding.widths import Classes, Kernel, KernelClasses, interchangeable
from sluice.doctor.diagnosis import diagnose

ALL = tuple(range(1, 66))


def kernel(*starts: int, kind: Kernel = "mul_mat") -> KernelClasses:
    """Classes that begin at these widths."""
    ends = [*starts[1:], 66]
    classes: Classes = tuple(tuple(range(a, b)) for a, b in zip(starts, ends, strict=True))
    return KernelClasses(kind, "Q4_K", "w", classes)


def test_drafts_within_a_class_of_every_kernel_are_one_group() -> None:
    assert interchangeable([kernel(1)]) == (tuple(range(9)),)
    assert interchangeable([kernel(1), kernel(1, 2)]) == ((0,), tuple(range(1, 9)))
    assert interchangeable([kernel(1, 2), kernel(1, 8)]) == ((0,), (1, 2, 3, 4, 5, 6), (7, 8))


def test_drafts_whose_experts_may_get_rows_of_two_classes_stand_alone() -> None:
    routed = kernel(1, 8, kind="mul_mat_id")
    assert interchangeable([kernel(1, 2), routed]) == ((0,), (1, 2, 3, 4, 5, 6), (7,), (8,))


def test_default_always_holds_and_claims_no_more_than_a_class() -> None:
    profile = diagnose("default", None, [kernel(1, 2)])
    assert profile.holds
    assert "no more than a width class" in profile.reason
    assert "no width moves a bit" in diagnose("default", None, [kernel(1)]).reason


def test_a_build_that_cannot_switch_is_told_how_to_get_there() -> None:
    profile = diagnose("invariant", ("cannot be switched off here", "build it so"), [])
    assert (profile.holds, profile.remedy) == (False, "build it so")
    assert profile.drafts == ()


def test_a_kernel_that_still_moves_bits_is_named_with_its_width() -> None:
    profile = diagnose("invariant", None, [kernel(1), kernel(1, 5, kind="mul_mat_id")])
    assert not profile.holds
    assert profile.reason == "mul_mat_id of Q4_K gives other bits for 5 rows than for one"
    assert profile.remedy


def test_decodes_are_never_wider_than_the_widest_draft() -> None:
    late = kernel(1, 10)
    assert diagnose("decode-invariant", None, [late]).holds
    assert not diagnose("invariant", None, [late]).holds
    assert diagnose("decode-invariant", None, [late]).drafts == (tuple(range(9)),)
