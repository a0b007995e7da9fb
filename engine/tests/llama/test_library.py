from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFValueType

from sluice.errors import SystemFault
from sluice.llama import library
from sluice.llama.context import Context, ContextShape
from sluice.llama.model import Model

WARN, ERROR, CONTINUED = 3, 4, 5


def say(level: int, text: str) -> None:
    library._keep_errors(level, text.encode(), None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def silence() -> None:
    library.forget_errors()


def test_errors_come_before_warnings_and_reasons_before_their_consequences() -> None:
    assert library.last_error("nothing") == "nothing"
    say(2, "for your information")
    assert library.last_error("nothing") == "nothing"
    say(WARN, "a warning\n")
    assert library.last_error("nothing") == "a warning"
    say(ERROR, "the reason\n")
    say(ERROR, "what failed with it\n")
    assert library.last_error("nothing") == "the reason"
    say(ERROR, "f: error loading model: a tensor is missing\n")
    assert library.last_error("nothing") == "a tensor is missing"
    library.forget_errors()
    assert library.last_error("nothing") == "nothing"


def test_a_frame_of_signs_is_no_reason() -> None:
    say(ERROR, "\n======\n ERROR: not like this!\n  - a tensor\n=====\n\n")
    assert library.last_error("nothing") == "ERROR: not like this!"


def test_a_continued_line_is_of_the_level_that_it_continues() -> None:
    say(2, "loading")
    say(CONTINUED, "...")
    assert library.last_error("nothing") == "nothing"
    say(ERROR, "one")
    say(2, "x")
    say(CONTINUED, "y")
    assert library.last_error("nothing") == "one"


def test_bytes_that_are_no_text_are_shown() -> None:
    library._keep_errors(ERROR, b"tensor \xff", None)  # type: ignore[arg-type]
    assert library.last_error("nothing") == "tensor \ufffd"


def test_what_is_said_in_another_thread_is_not_ours() -> None:
    say(ERROR, "ours")
    heard: list[str] = []

    def other() -> None:
        heard.append(library.last_error("nothing"))
        say(ERROR, "theirs")
        library.forget_errors()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert heard == ["nothing"]
    assert library.last_error("nothing") == "ours"


def test_a_head_that_is_not_there_is_a_fault_in_llama_cpps_words(
    rewrite: Callable[..., Path], tmp_path: Path
) -> None:
    keys = {
        "qwen35moe.nextn_predict_layers": None,
        "qwen35moe.block_count": (4, GGUFValueType.UINT32),
    }
    path = rewrite(tmp_path / "m.gguf", keys=keys, drop=r"^blk\.4\.")
    bare = Model(path, load_mtp=True, by_header=False)
    with pytest.raises(SystemFault, match=r"no context could be made: .*MTP"):
        Context(bare, ContextShape(n_ctx=256, rows_max=8, outputs_max=1, is_head=True))
    bare.close()


def test_the_libraries_that_are_loaded_are_those_of_the_package() -> None:
    library.start()
    for name in ("libllama", "libggml-base", "libggml-cpu"):
        path = library.loaded(name)
        assert path is None or (path.exists() and path.parent == library.folder())
    assert library.loaded("libnone") is None
    assert library.ggml_base() is library.ggml_base()


def test_version_and_system_are_one_line() -> None:
    assert library.version()[0].isdigit()
    assert "CPU" in library.system_info()
    assert "\n" not in library.system_info()
