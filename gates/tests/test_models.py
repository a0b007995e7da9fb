"""Which models are run, and where the ones that are made are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.bundled import BUNDLED, model_path
from sluice.errors import ModelError, RequestError
from sluice.telemetry.files import write_whole
from sluice_gates import models, variants
from sluice_gates.models import ALL_TYPES, Model, labels, made_once, open_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for cached in (models.cache_folder, models.open_model):
        cached.cache_clear()
    yield
    for cached in (models.cache_folder, models.open_model):
        cached.cache_clear()


def test_labels() -> None:
    assert labels(BUNDLED, None) == ["Q8_0", "Q4_K_M", "MXFP4_MOE"]
    assert labels(BUNDLED, "F16,Q8_0,F16") == ["F16", "Q8_0"]
    assert labels(BUNDLED, "all") == list(ALL_TYPES)
    assert labels("/models/big-Q4.gguf", None) == ["big-Q4"]


@pytest.mark.parametrize(
    ("named", "types", "words"),
    [
        (BUNDLED, "Q9", "no 'Q9'; there are Q8_0"),
        (BUNDLED, "", "no ''"),
        (BUNDLED, "Q8_0,", "no ''"),
        ("x.gguf", "Q8_0", "x.gguf is run as it is"),
    ],
)
def test_labels_that_are_refused(named: str, types: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        labels(named, types)


def test_a_named_model_is_run_as_it_is(tmp_path: Path) -> None:
    master = model_path(BUNDLED)
    model = open_model(str(master), "x", tmp_path)
    assert model.path == master
    assert (model.is_bundled, model.quantisation, model.master_sha256) == (False, None, None)
    assert model.name == master.name


def test_a_quantisation_is_made_once(tmp_path: Path) -> None:
    first = open_model(BUNDLED, "MXFP4_MOE", tmp_path)
    stamp = first.path.stat().st_mtime_ns
    models.open_model.cache_clear()
    again = open_model(BUNDLED, "MXFP4_MOE", tmp_path)
    assert again.path.stat().st_mtime_ns == stamp
    assert again.name == "bundled MXFP4_MOE"
    assert again.master_sha256 != again.facts.fingerprint.model_sha256
    assert str(tmp_path / "cache" / "sluice" / "models") in str(first.path)


def test_two_that_ask_at_once_both_get_a_whole_file(tmp_path: Path) -> None:
    master = model_path(BUNDLED)

    def make(_master: Path, out: Path) -> Path:
        write_whole(out, "x" * 100_000)
        return out

    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _i: made_once(master, "copy", make, tmp_path), range(8)))
    assert len(set(paths)) == 1
    assert len(paths[0].read_text()) == 100_000
    assert [p.name for p in paths[0].parent.iterdir()] == [paths[0].name]


def test_a_cache_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    models.cache_folder.cache_clear()
    folder = models.cache_folder(model_path(BUNDLED), tmp_path / "scratch")
    assert folder.is_relative_to(tmp_path / "scratch")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        open_model(str(tmp_path / "none.gguf"), "none", tmp_path)
    path = tmp_path / "other.gguf"
    path.write_bytes(b"ZZZZ")
    with pytest.raises(ModelError, match="not a gguf"):
        open_model(str(path), "other", tmp_path)


def test_a_model_of_64_mib_is_not_small(tmp_path: Path) -> None:
    facts = open_model(BUNDLED, "Q8_0", tmp_path).facts
    for size, is_small in ((1, True), ((64 << 20) - 1, True), (64 << 20, False)):
        changed = dataclasses.replace(facts, file_bytes=size)
        assert Model(tmp_path / "m.gguf", "m", False, changed).is_small == is_small


def test_a_model_in_shards_is_as_large_as_all_of_them(tmp_path: Path) -> None:
    whole = open_model(BUNDLED, "Q8_0", tmp_path)
    first = variants.sharded(whole.path, tmp_path, 2)
    model = open_model(str(first), "m", tmp_path)
    sizes = [path.stat().st_size for path in tmp_path.glob("*-of-00002.gguf")]
    assert (len(sizes), model.facts.file_bytes) == (2, sum(sizes))
    assert (model.facts.has_head, model.facts.has_experts) == (True, True)
