from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.errors import ModelError, RequestError
from sluice.llama.model import Model


@pytest.mark.parametrize(
    "text", ["", "x", "def f(x):\n    return x\n", "naïve – ×", "日本語 😀", "\0"]
)
def test_the_pieces_of_a_text_join_to_it(loaded: Model, text: str) -> None:
    ids = loaded.tokenize(text)
    loaded.check_ids(ids)
    assert b"".join(loaded.piece(i) for i in ids).decode() == text


def test_a_token_is_several_characters(loaded: Model) -> None:
    text = "import os\n\n\ndef main(argv):\n    return None\n"
    assert len(loaded.tokenize(text)) < len(text) / 2


def test_every_id_of_the_vocabulary_has_a_piece(loaded: Model) -> None:
    pieces = [loaded.piece(i) for i in range(loaded.n_vocab)]
    ends = [i for i in range(loaded.n_vocab) if loaded.is_eog(i)]
    assert ends
    assert [pieces[i] for i in ends] == [b""] * len(ends)
    assert len(set(pieces)) > loaded.n_vocab * 0.9


def test_a_long_text_is_tokenised_whole(loaded: Model) -> None:
    text = "for i in range(10):\n    print(i)\n" * 2000
    assert b"".join(loaded.piece(i) for i in loaded.tokenize(text)).decode() == text


def test_half_a_character_is_refused(loaded: Model) -> None:
    with pytest.raises(RequestError, match=r"U\+DCFF at position 2 is half of a character"):
        loaded.tokenize("ab\udcff")


@pytest.mark.parametrize("beyond", [-1, -(2**40), 2**31, 2**40])
def test_an_id_that_is_none_is_refused(loaded: Model, beyond: int) -> None:
    with pytest.raises(RequestError, match=rf"token id {beyond} at position 1: .* ids 0 to"):
        loaded.check_ids([0, beyond])
    with pytest.raises(RequestError, match=f"token id {loaded.n_vocab} at position 0"):
        loaded.check_ids([loaded.n_vocab])


def test_the_head_is_counted(loaded: Model) -> None:
    assert loaded.n_nextn == 1


@pytest.mark.parametrize("by_header", [True, False])
def test_llama_cpps_own_words_are_passed_on(
    rewrite: Callable[..., Path], tmp_path: Path, by_header: bool
) -> None:
    path = rewrite(tmp_path / "m.gguf", drop=r"\.nextn\.")
    with pytest.raises(ModelError, match=r"blk\.4\.nextn\.eh_proj\.weight") as refused:
        Model(path, load_mtp=True, by_header=by_header)
    assert str(refused.value).startswith(f"{path}: llama.cpp cannot open it: ")
    assert "\n" not in str(refused.value)


def test_the_words_are_those_of_this_load(tmp_path: Path, rewrite: Callable[..., Path]) -> None:
    first = rewrite(tmp_path / "m.gguf", drop=r"\.nextn\.")
    second = rewrite(tmp_path / "n.gguf", drop="output_norm")
    for path, words in ((first, "eh_proj"), (second, "output_norm"), (first, "eh_proj")):
        with pytest.raises(ModelError, match=words):
            Model(path, load_mtp=True, by_header=False)


def test_progress_is_reported_and_its_errors_do_not_reach_llama_cpp(model: Path) -> None:
    seen: list[float] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        raise ValueError("from a callback")

    Model(model, load_mtp=False, by_header=False, progress=progress).close()
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_file_name_may_be_any_bytes(model: Path, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xff.gguf"))
    try:
        path.symlink_to(model)
    except OSError as err:
        pytest.skip(f"not a name on this file system: {err}")
    Model(path, load_mtp=False, by_header=False).close()


def test_closing_twice_is_harmless(model: Path) -> None:
    one = Model(model, load_mtp=False, by_header=True)
    one.close()
    one.close()
