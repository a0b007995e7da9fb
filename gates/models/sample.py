"""Print greedy continuations of a model file by llama.cpp, to be read by a person."""

from __future__ import annotations

import argparse
from pathlib import Path

from prove_export import Engine

PROMPTS = (
    "import os\nimport sys\n\n",
    'class TestCase(unittest.TestCase):\n    """Tests of the parser."""\n\n    def test_empty(',
    'def read_lines(path):\n    """Return the lines of a file.',
    "    def __init__(self, name, value=None):\n        self.name = name\n",
    "for key, value in sorted(headers.items()):\n    if not isinstance(",
)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=128, help="tokens a prompt")
    chosen = parser.parse_args()
    engine = Engine(chosen.model, 512)
    for prompt in PROMPTS:
        made = engine.greedy(engine.tokenize(prompt), chosen.count)
        text = b"".join(engine.piece(token) for token in made).decode(errors="replace")
        print(f"----- {len(made)} tokens\n{prompt}█{text}")


if __name__ == "__main__":
    main()
