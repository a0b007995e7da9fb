"""The layout of the code: who may import whom, the llama.cpp seam, the size of a module.

Imports are read from the syntax tree, so one inside a function or behind TYPE_CHECKING counts
like any other. The checker itself is tested on planted violations.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice import bundled

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"sluice": ROOT / "engine" / "sluice", "sluice_gates": ROOT / "gates" / "sluice_gates"}
MAX_LINES = 400

FOREIGN = {"llama_cpp", "ctypes", "_ctypes"}
SEAM = "llama"

# cli → (sweep, triage, targets) → decoding → streaming → (llama, gguf). A part may import
# whatever is further down; the leaves import leaves only.
LEAVES = {"config", "errors", "knob"}
SHARED = LEAVES | {"bundled", "interrupts", "telemetry", "seams"}
BELOW_DECODING = {"streaming", "llama", "gguf"}
BELOW_TARGETS = {"decoding"} | BELOW_DECODING
ALLOWED = {
    "errors": set(),
    "knob": {"errors"},
    "config": LEAVES,
    "bundled": LEAVES,
    "interrupts": set(),
    "webpage": set(),
    "telemetry": LEAVES,
    "seams": LEAVES,
    "llama": SHARED,
    "gguf": SHARED,
    "streaming": SHARED | {"llama", "gguf"},
    "decoding": SHARED | BELOW_DECODING,
    "targets": SHARED | BELOW_TARGETS,
    "triage": SHARED | BELOW_TARGETS | {"targets", "webpage"},
    "sweep": SHARED | BELOW_TARGETS | {"targets", "webpage"},
    "doctor": SHARED | BELOW_TARGETS,
    "cli": SHARED | BELOW_TARGETS | {"targets", "triage", "sweep", "doctor"},
}
GATES_MAY = {"targets", "triage", "config", "knob", "errors", "telemetry", "bundled"}


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that ``path`` imports.

    ``from a import b`` yields ``a.b``: b may be a module. Imports by name, as in
    ``importlib.import_module("a")``, count where the name is written out.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom():
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*(parts if node.level else []), *filter(None, [node.module])])
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
            case ast.Call(
                func=ast.Name(id="__import__" | "import_module")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield node.lineno, name


def modules(packages: dict[str, Path]) -> Iterator[tuple[Path, str]]:
    for name, folder in packages.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            yield path, ".".join([name, *(part for part in parts if part != "__init__")])


def violations(packages: dict[str, Path]) -> list[str]:
    """Every import that breaks a rule, as ``module:line imports name: why``."""
    found = []
    for path, module in modules(packages):
        for line, name in imports(path, module):
            why = objection(module, name)
            if why:
                found.append(f"{module}:{line} imports {name}: {why}")
    return found


def objection(module: str, name: str) -> str:
    """Why ``module`` may not import ``name``; empty where it may."""
    package, *parts = module.split(".")
    target, *rest = name.split(".")
    part = parts[0] if parts else ""
    if target in FOREIGN and (package, part) != ("sluice", SEAM):
        return f"only sluice.{SEAM} imports {target}"
    if target == "sluice_gates" and package == "sluice" and part != "cli":
        return "the engine does not know the gates"
    # The root re-exports Config, the errors and Session, for users; __version__ is for all.
    if target != "sluice" or module == "sluice" or rest == ["__version__"]:
        return ""
    if not rest or rest[0] not in ALLOWED:
        return "not a part of the engine; name the module that defines it"
    if package == "sluice_gates":
        return "" if rest[0] in GATES_MAY else f"gates see only {', '.join(sorted(GATES_MAY))}"
    if part not in ALLOWED:
        return f"sluice.{part} has no place in the dependency direction; give it one in ALLOWED"
    return "" if rest[0] in ALLOWED[part] | {part} else f"{part} is not above {rest[0]}"


def long_modules(folders: list[Path]) -> dict[str, int]:
    sizes = {
        path.name: len(path.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for path in folder.rglob("*.py")
    }
    return {name: size for name, size in sizes.items() if size > MAX_LINES}


def test_every_import_points_down_and_llama_cpp_stays_in_its_seam() -> None:
    assert violations(PACKAGES) == []


def test_the_allowed_imports_have_no_cycle() -> None:
    done: set[str] = set()
    while ready := {part for part in ALLOWED if ALLOWED[part] - {part} <= done} - done:
        done |= ready
    assert done == set(ALLOWED)


def test_no_module_is_over_400_lines() -> None:
    assert long_modules([*PACKAGES.values(), ROOT / "engine" / "tests", ROOT / "gates/tests"]) == {}


def test_a_planted_long_module_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"sluice/long.py": "x = 1\n" * 401, "sluice/short.py": "x = 1\n" * 400})
    assert long_modules([tmp_path]) == {"long.py": 401}


def test_the_wheel_takes_the_bundled_model_that_the_engine_looks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    assert f"gates/models/{bundled.MODEL_NAME}" in included
    # The build backend skips a path that is not there without a word.
    assert [path for path in included if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("where", "source", "expected"),
    [
        ("sluice/decoding/a.py", "import ctypes", "sluice.decoding.a:1 imports ctypes: only"),
        ("sluice/gguf/a.py", "import ctypes.util", "sluice.gguf.a:1 imports ctypes.util: only"),
        ("sluice/cli/a.py", "from llama_cpp import llama_cpp", "only sluice.llama imports"),
        ("sluice/cli/a.py", "def f():\n    import llama_cpp", "sluice.cli.a:2 imports llama_cpp:"),
        ("sluice/cli/a.py", "import importlib\nimportlib.import_module('ctypes')", "a:2 imports"),
        ("sluice/cli/a.py", "__import__('llama_cpp')", "only sluice.llama imports llama_cpp"),
        ("sluice_gates/a.py", "from ctypes import c_int", "only sluice.llama imports ctypes"),
        ("sluice/streaming/a.py", "from sluice.decoding import session", "streaming is not above"),
        ("sluice/streaming/a.py", "from ..decoding import session", "imports sluice.decoding.ses"),
        ("sluice/llama/__init__.py", "from .. import cli", "llama is not above cli"),
        ("sluice/llama/a.py", "from sluice.gguf import header", "llama is not above gguf"),
        ("sluice/gguf/a.py", "from sluice.llama import model", "gguf is not above llama"),
        ("sluice/targets/a.py", "import sluice.triage", "targets is not above triage"),
        ("sluice/triage/a.py", "from sluice.sweep import arms", "triage is not above sweep"),
        ("sluice/telemetry/a.py", "from sluice.bundled import x", "telemetry is not above bund"),
        ("sluice/config.py", "from sluice.telemetry import x", "config is not above telemetry"),
        ("sluice/errors.py", "from sluice.config import Config", "errors is not above config"),
        ("sluice/decoding/a.py", "from sluice import Session", "name the module that defines"),
        ("sluice/targets/a.py", "from sluice_gates import plugin", "does not know the gates"),
        ("sluice/extra/a.py", "import sluice.config", "sluice.extra has no place"),
        ("sluice_gates/a.py", "from sluice.decoding.session import Session", "gates see only"),
        ("sluice_gates/a.py", "import sluice", "name the module that defines it"),
        ("sluice_gates/a.py", "from sluice.streaming import reader", "gates see only"),
    ],
)
def test_the_checker_catches_a_planted_violation(
    tmp_path: Path, where: str, source: str, expected: str
) -> None:
    found = violations(plant(tmp_path, {where: source}))
    assert len(found) == 1
    assert expected in found[0]


def test_the_checker_lets_the_allowed_directions_pass(tmp_path: Path) -> None:
    files = {
        "sluice/__init__.py": "from sluice.decoding.session import Session",
        "sluice/llama/a.py": "import ctypes\nfrom . import b\nfrom ..errors import E",
        "sluice/llama/b.py": "import llama_cpp\nfrom sluice.llama.a import x",
        "sluice/streaming/a.py": "from sluice.llama import tensor\nfrom sluice.gguf import header",
        "sluice/decoding/a.py": "from sluice import __version__\nfrom ..streaming.a import x",
        "sluice/sweep/a.py": "from sluice.targets import engine",
        "sluice/cli/a.py": "from sluice_gates import plugin\nfrom sluice.triage import x",
        "sluice_gates/a.py": "import numpy\nfrom sluice.targets.engine import EngineTarget",
        "sluice_gates/b.py": "from sluice_gates.a import x\nfrom . import a",
    }
    assert violations(plant(tmp_path, files)) == []


def plant(root: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return {name: root / name for name in PACKAGES if (root / name).is_dir()}
