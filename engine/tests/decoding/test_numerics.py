from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.decoding import numerics
from sluice.decoding.numerics import Numerics, obstacle, prove
from sluice.errors import RequestError, SystemFault
from sluice.gguf.header import Header
from sluice.llama import kernels

from .models import weights_only


@pytest.fixture
def header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Header]:
    monkeypatch.setattr(numerics, "_proven", set())
    yield weights_only(tmp_path / "m.gguf")
    assert numerics._open == {}


def test_the_self_check_remembers_what_it_has_proven(header: Header) -> None:
    prove(header, "invariant")
    assert ("mul_mat", "F32") in numerics._proven
    assert ("mul_mat", "F16") in numerics._proven  # the cached keys of attention


@pytest.mark.skipif(not kernels.has_llamafile(), reason="this build has no llamafile")
def test_the_self_check_names_type_and_width(
    header: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = kernels.switched_off
    monkeypatch.setattr(kernels, "switched_off", lambda _switches: real(()))
    with pytest.raises(SystemFault, match=r"F32 weights give other bits for 2 rows than for one"):
        Numerics("invariant", header)


def test_profiles_cannot_be_open_at_once(header: Header) -> None:
    first, second = Numerics("invariant", header), Numerics("invariant", header)
    with pytest.raises(RequestError, match="a session with --numerics invariant is open"):
        Numerics("default", header)
    first.close()
    first.close()
    with pytest.raises(RequestError, match="is open"):
        Numerics("decode-invariant", header)
    second.close()
    Numerics("default", header).close()


def test_a_build_that_cannot_switch_is_refused_with_the_remedy(
    header: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "present", lambda switch: switch == "sgemm")
    monkeypatch.setattr(kernels, "switchable", lambda _switch: False)
    assert obstacle("default") is None
    found = obstacle("invariant")
    assert found is not None
    assert "GGML_LLAMAFILE=OFF" in found[1]
    with pytest.raises(RequestError, match="cannot be switched off here; build llama-cpp-python"):
        Numerics("decode-invariant", header)
