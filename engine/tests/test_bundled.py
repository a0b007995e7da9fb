from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice import bundled
from sluice.errors import ModelError, RequestError


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    assert bundled.model_path(str(path)) == path


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").write_bytes(b"x")
    assert bundled.model_path("~/m.gguf") == tmp_path / "m.gguf"


def test_a_file_called_bundled_needs_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bundled").write_bytes(b"x")
    assert bundled.model_path("./bundled") == Path("bundled")
    assert bundled.model_path("./bundled").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.gguf", "no such file; give the path of a gguf, or the word bundled"),
        (".", "is a folder; give the gguf file in it"),
        ("nul\0byte.gguf", "no such file"),
    ],
)
def test_what_is_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError) as refused:
        bundled.model_path(name)
    assert words in str(refused.value)
    assert str(refused.value).startswith(name)


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(RequestError, match="is not a regular file"):
        bundled.model_path(str(tmp_path / "m.gguf"))


def test_the_wheel_comes_before_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "pkg" / "_bundled" / "models" / bundled.MODEL_NAME
    checkout = tmp_path / "gates" / "models" / bundled.MODEL_NAME
    for path in (wheel, checkout):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path / "pkg")
    monkeypatch.setattr(bundled, "_CHECKOUT", tmp_path)
    assert bundled.model_path("bundled") == wheel
    wheel.unlink()
    assert bundled.model_path("bundled") == checkout
    checkout.unlink()
    with pytest.raises(ModelError, match=r"bundled: .* is not in this installation; reinstall"):
        bundled.model_path("bundled")


def test_goldens_of_the_wheel_come_before_those_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path / "pkg")
    monkeypatch.setattr(bundled, "_CHECKOUT", tmp_path)
    assert bundled.goldens_folder() == tmp_path / "goldens"
    (tmp_path / "pkg" / "_bundled" / "goldens").mkdir(parents=True)
    assert bundled.goldens_folder() == tmp_path / "pkg" / "_bundled" / "goldens"


def test_the_bundled_model_is_small_enough_to_ship() -> None:
    assert bundled.model_path("bundled").stat().st_size <= 15_000_000


@pytest.mark.parametrize("model", ["~nosuchuser/x.gguf", "a" * 5000, "a\0b"])
def test_a_name_that_the_system_refuses_is_one_line(model: str) -> None:
    with pytest.raises(RequestError, match="no such file"):
        bundled.model_path(model)
