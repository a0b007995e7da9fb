"""The training text: the running interpreter's own standard library, as documents."""

from __future__ import annotations

import ast
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

# Tables of code points and generated text teach a small model nothing but their own rows.
SKIPPED_FOLDERS = frozenset({"site-packages", "__pycache__", "pydoc_data", "lib-dynload"})
SKIPPED_PREFIXES = ("_sysconfigdata", "cp", "mac_", "iso8859", "koi8", "tis_")
LARGEST_DOCUMENT = 120_000
# Tests are the larger half of the library and much alike: a share of them is enough.
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
TEST_SHARE = 0.35
HELD_OUT_ONE_IN = 32
FUNCTION_SHARE = 0.30
FUNCTION_CHARACTERS = (120, 1_500)


@dataclass(frozen=True)
class Corpus:
    """Documents to train on and documents never trained on, each a str, in a seeded order."""

    train: list[str]
    held_out: list[str]


def source_files(root: Path, chooser: random.Random) -> list[Path]:
    """Every Python file under `root` that the corpus uses, sorted by path."""
    paths = sorted(root.rglob("*.py"))
    return [path for path in paths if _wanted(path.relative_to(root), chooser)]


def _wanted(relative: Path, chooser: random.Random) -> bool:
    folders = set(relative.parts[:-1])
    if SKIPPED_FOLDERS & folders or relative.name.startswith(SKIPPED_PREFIXES):
        return False
    return not TEST_FOLDERS & folders or chooser.random() < TEST_SHARE


def read_document(path: Path) -> str | None:
    """The text of one file with unix line ends, or None where it is no plain UTF-8."""
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text[:LARGEST_DOCUMENT] if text.strip() else None


def functions(text: str) -> list[str]:
    """The top-level functions and the methods of `text`, dedented, of a middling length."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    lines = text.split("\n")
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        body = lines[first - 1 : node.end_lineno]
        indent = node.col_offset
        if any(line[:indent].strip() for line in body):
            continue
        piece = "\n".join(line[indent:] for line in body) + "\n"
        if FUNCTION_CHARACTERS[0] <= len(piece) <= FUNCTION_CHARACTERS[1]:
            found.append(piece)
    return found


def load_corpus(root: Path | None = None, seed: int = 1) -> Corpus:
    """Split the files under `root` (the standard library by default) into train and held out.

    A file is wholly in one part. A share of each part's functions is repeated as short
    documents of their own, so that a model sees many document ends.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    chooser = random.Random(seed)
    paths = source_files(root, chooser)
    texts = [text for path in paths if (text := read_document(path)) is not None]
    chooser.shuffle(texts)
    held_count = max(1, len(texts) // HELD_OUT_ONE_IN)
    held_files, train_files = texts[:held_count], texts[held_count:]
    parts = [_with_functions(part, chooser) for part in (train_files, held_files)]
    return Corpus(train=parts[0], held_out=parts[1])


def _with_functions(texts: list[str], chooser: random.Random) -> list[str]:
    documents = list(texts)
    for text in texts:
        documents += [piece for piece in functions(text) if chooser.random() < FUNCTION_SHARE]
    chooser.shuffle(documents)
    return documents
