from __future__ import annotations

import pytest

from sluice.errors import SystemFault
from sluice.llama import library, tensor


def test_the_layout_is_the_librarys_own() -> None:
    library.start()
    tensor.check_layout()


@pytest.mark.parametrize("field", ["_NE", "_NB", "_SRC", "_DATA", "_NAME"])
@pytest.mark.parametrize("shift", [-8, 8])
def test_a_field_that_is_elsewhere_is_noticed(
    field: str, shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.start()
    monkeypatch.setattr(tensor, field, getattr(tensor, field) + shift)
    with pytest.raises(SystemFault, match=r"ggml_tensor is laid out differently .* install"):
        tensor.check_layout()


def test_llama_cpp_does_not_start_on_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor, "_NAME", tensor._NAME + 8)
    with pytest.raises(SystemFault, match=library.version()):
        library.start.__wrapped__()
