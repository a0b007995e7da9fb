"""What holds on a build for a model: profiles, and drafts that give the same bits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from sluice.config import DRAFT_MAX, Numerics
from sluice.decoding.widths import KernelClasses, interchangeable

PROFILES: tuple[str, ...] = get_args(Numerics)
SELF_CHECK = "the kernels are not what Sluice knows of this processor: use --numerics default"


@dataclass(frozen=True, slots=True)
class Profile:
    """Whether a numerics profile holds on this build for this model, and why.

    ``drafts`` are the groups of draft widths whose runs have the same bits where every draft
    has its full width; 0 is plain decoding. ``remedy`` is set where the profile does not hold.
    """

    name: str
    holds: bool
    reason: str
    remedy: str | None
    drafts: tuple[tuple[int, ...], ...]


def diagnose(
    name: str, obstacle: tuple[str, str] | None, classes: Sequence[KernelClasses]
) -> Profile:
    """Judge one profile.

    Args:
        name: of :data:`PROFILES`.
        obstacle: why the build cannot have it, and the remedy.
        classes: of every kernel that decodes of this profile use.
    """
    if name == "default":
        moved = [kernel for kernel in classes if len(kernel.classes) > 1]
        words = "it claims no more than a width class" if moved else "and no width moves a bit"
        return Profile(name, True, f"kernels as ggml chooses them: {words}", None,
                       interchangeable(classes))  # fmt: skip
    if obstacle is not None:
        return Profile(name, False, obstacle[0], obstacle[1], ())
    width = DRAFT_MAX + 1 if name == "decode-invariant" else max(_widths(classes), default=1)
    for kernel in classes:
        if not kernel.constant_up_to(width):
            at = next(n for n in range(2, width + 1) if not kernel.constant_up_to(n))
            reason = (
                f"{kernel.kernel} of {kernel.type_name} gives other bits for {at} rows than for one"
            )
            return Profile(name, False, reason, SELF_CHECK, ())
    whose = "decodes" if name == "decode-invariant" else "prompt and decodes"
    reason = f"{whose}: a row has the same bits among 1 to {width} rows"
    return Profile(name, True, reason, None, interchangeable(classes))


def _widths(classes: Iterable[KernelClasses]) -> set[int]:
    return {width for kernel in classes for one in kernel.classes for width in one}
