"""An examination as a screen of text. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sluice import __version__
from sluice.decoding.widths import ATTENTION, WIDTHS, KernelClasses, spelled, spelled_drafts
from sluice.doctor.build import Build
from sluice.doctor.diagnosis import Profile
from sluice.doctor.examination import Examination
from sluice.doctor.streaming import Streaming
from sluice.telemetry.summary import MIB


def lines(found: Examination) -> list[str]:
    """Lines without line ends, none longer than its subject needs."""
    out = [*_build(found.build), ""]
    head = "an MTP head" if found.has_head else "no MTP head, so --mtp is refused"
    out.append(f"model: {found.model}, {found.architecture}, {head}")
    if found.unknown is not None:
        out.append(f"width classes: not found: {found.unknown}")
    else:
        out.append(
            f"width classes, found by computing one row among 1 to {max(WIDTHS)}"
            f" ({found.threads} {'thread' if found.threads == 1 else 'threads'}; within a class a"
            " row has the same bits):"
        )
        out += _table(found)
    out += ["", "profiles:", *_profiles(found.profiles)]
    if not found.unknown:
        out += ["", "drafts that give the same bits, logits included, where none is cut short"
                " by --mtp-p-min:", *_drafts(found)]  # fmt: skip
    return [*out, "", *_streaming(found.streaming)]


def _build(build: Build) -> list[str]:
    states = {
        (False, True): "not in this build",
        (False, False): "not in this build",
        (True, True): "in this build, can be switched off",
        (True, False): "in this build, cannot be switched off here",
    }
    openmp = {True: "yes", False: "no", None: "not said"}[build.openmp]
    rows = [
        ("sluice", f"{__version__}, llama-cpp-python {build.llama_cpp_python}, {build.platform}"),
        ("ggml", build.system_info or "says nothing of itself"),
        ("llamafile", "in this build" if build.has_llamafile else "not in this build"),
        ("OpenMP", openmp),
    ]
    rows += [(f"kernels {s.name}", states[s.is_present, s.is_switchable]) for s in build.switches]
    for there, word in ((True, "found"), (False, "not found")):
        slots = [name for name, found in build.slots.items() if found is there]
        if slots:
            rows.append((f"call slots {word}", ", ".join(slots)))
    return _columns(rows)


def _table(found: Examination) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "type", "kernel", "as built", "switched off")]
    off = {(k.kernel, k.type_name, k.sample): k for k in found.switched_off}
    for kernel in found.as_is:
        twin = off.pop((kernel.kernel, kernel.type_name, kernel.sample), None)
        rows.append(_row(kernel, spelled(kernel.classes), spelled(twin.classes) if twin else "-"))
    rows += [_row(kernel, "-", spelled(kernel.classes)) for kernel in off.values()]
    return _columns(rows)


def _row(kernel: KernelClasses, as_is: str, off: str) -> tuple[str, ...]:
    where = ""
    if kernel.sample.startswith(ATTENTION):
        where = kernel.sample.removeprefix(ATTENTION).lstrip(", ") or "cached keys"
    return ("", kernel.type_name, f"{kernel.kernel} {where}".rstrip(), as_is, off)


def _profiles(profiles: Iterable[Profile]) -> list[str]:
    rows = []
    for profile in profiles:
        words = profile.reason if profile.remedy is None else f"{profile.reason}; {profile.remedy}"
        rows.append(("", profile.name, "holds" if profile.holds else "does not hold", words))
    return _columns(rows)


def _drafts(found: Examination) -> list[str]:
    rows = []
    for profile in found.profiles:
        if profile.holds:
            rows.append(
                ("", profile.name, " | ".join(spelled_drafts(one) for one in profile.drafts))
            )
    return _columns(rows)


def _streaming(found: Streaming) -> list[str]:
    if found.plan is None:
        return [f"streaming: not this model: {found.refusal}"]
    plan = found.plan.without_head()
    experts = _span([one.n_expert for one in plan.layers], str)
    whose = "" if found.n_files == 1 else f", in {found.n_files} shards"
    rows = [
        ("", "experts", f"{len(plan.layers)} layers of {experts}, {plan.n_used} used a token;"
                        f" {_mib(plan.total_bytes)} in all{whose}"),
        ("", "an expert", _span([one.expert_bytes for one in plan.layers], _mib)),
        ("", "a layer", _span([one.layer_bytes for one in plan.layers], _mib)),
        ("", "a token", f"{_mib(plan.token_bytes)}, read for every token where nothing is cached"),
        ("", "resident", f"{_mib(plan.dense_bytes)} of weights that are not streamed"),
    ]  # fmt: skip
    if found.plan.head:
        rows.append(("", "with --mtp", f"{_mib(found.plan.head_token_bytes)} more a drafted token,"
                     f" of {_mib(found.plan.total_bytes - plan.total_bytes)} more in all;"
                     f" {_mib(found.plan.head_dense_bytes)} more resident"))  # fmt: skip
    sizes = [
        ("", f"--cache-mb {-(-one.cache_bytes // MIB)}", one.name,
         f"the experts of {one.n_tokens:.1f} tokens")
        for one in plan.cache_sizes(found.ubatch)
    ]  # fmt: skip
    if found.auto_cache_bytes is not None:
        sizes.append(("", "--cache-mb auto", f"at most {_mib(found.auto_cache_bytes)} now",
                      f"the experts of {found.auto_cache_bytes / plan.token_page_bytes:.1f}"
                      " tokens"))  # fmt: skip
    return [
        "streaming, with --moe-stream:",
        *_columns(rows),
        f"cache sizes that make sense with --ubatch {found.ubatch}, and what they hold:",
        *_columns(sizes),
    ]


def _span(values: Sequence[int], spelled: Callable[[int], str]) -> str:
    low, high = spelled(min(values)), spelled(max(values))
    return low if low == high else f"{low} to {high}"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.2f} MiB"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
