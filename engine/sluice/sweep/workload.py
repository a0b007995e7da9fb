"""Prompts and how they are sampled: what every arm of a sweep is timed on.

The format of ``--workload FILE`` is described in docs/sweep.md.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from sluice.config import SEED_MAX, Config, validate
from sluice.errors import RequestError
from sluice.sweep.prose import long_prose, short_prose

SCHEMA: Final = "sluice-workload/1"
CARD: Final[Mapping[str, Any]] = {"temp": 1.0, "top_p": 0.95, "top_k": 20}
"""A model card's sampler: that of the sampled workloads."""

LONG_PROSE_TOKENS: Final = 24_000
_NAME_MOST = 60


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; ``text`` as it is sent, line ends included."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts with one way to sample.

    Args:
        name: identifies the workload in every row.
        prompts: one request each, for every arm and repeat.
        n: tokens to generate at most.
        temp: 0 is greedy, and then the other three have no meaning.
        seed: of the first repeat; see :meth:`seed_of`.
        chat: whether a server is to put the prompts into the model's chat template. Sluice's own
            engine continues the text as it stands.
        thinking: whether the template's thinking is on, where it has that.
    """

    name: str
    prompts: tuple[Prompt, ...]
    n: int = 1536
    temp: float = 0.0
    top_p: float = 0.95
    top_k: int = 20
    seed: int = 42
    chat: bool = True
    thinking: bool = False

    @property
    def is_greedy(self) -> bool:
        """Whether one text is right, and its hash can be held against another arm's."""
        return self.temp == 0

    @property
    def key(self) -> str:
        """12 hex digits over everything that a request is made of."""
        values = dataclasses.asdict(self)
        del values["name"]
        text = json.dumps(values, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]

    def seed_of(self, repeat: int) -> int:
        """The seed of a repeat, counted from 0: sampled repeats are to be different texts."""
        return self.seed if self.is_greedy else (self.seed + repeat) % (SEED_MAX + 1)

    def config_fields(self, repeat: int = 0) -> dict[str, Any]:
        """The fields of :class:`Config` that make the engine run a request of this workload."""
        return {"n": self.n, "temp": self.temp, "top_p": self.top_p, "top_k": self.top_k,
                "seed": self.seed_of(repeat)}  # fmt: skip


def default_workloads(
    *, speculates_sampled: bool, long_tokens: int = LONG_PROSE_TOKENS
) -> tuple[Workload, ...]:
    """Greedy code, sampled code, short prose and long prose.

    Args:
        speculates_sampled: whether the target drafts where decoding is sampled, as a llama-server
            does. Where it does not, prose is greedy, so that there is something to measure;
            sampled code stays as it is, for its arms to be shown as refused.
        long_tokens: about how long the long prose prompt is.
    """
    code = tuple(
        Prompt(name, _data(f"code-{name}.txt"))
        for name in ("lru-cache", "csv-invoices", "topological-sort")
    )
    prose: Mapping[str, Any] = CARD if speculates_sampled else {}
    return (
        Workload("greedy-code", code),
        Workload("sampled-code", code, thinking=True, **CARD),
        Workload("short-prose", (Prompt("crossing", short_prose()),), **prose),
        Workload("long-prose", (Prompt("day-book", long_prose(long_tokens)),), **prose),
    )


def bundled_workloads() -> tuple[Workload, ...]:
    """The bundled model knows Python source and nothing else: greedy, and sampled."""
    greedy = from_json(_data("greedy-python.json"), "greedy-python.json", Path())
    return greedy, dataclasses.replace(greedy, name="sampled-python", **CARD)


def load(path: Path) -> Workload:
    """The workload in a file: JSON where its name ends in ``.json``, else one greedy prompt.

    Raises:
        RequestError: one line with the file, the key and what to change.
    """
    text = _text(path, f"--workload {path}")
    if path.suffix.lower() == ".json":
        return from_json(text, f"--workload {path}", path.parent)
    where = f"--workload {path}"
    return Workload(_name(path.stem, where), (Prompt(path.stem, _prompt_text(text, where)),))


def from_json(text: str, where: str, folder: Path) -> Workload:
    """The workload that a JSON text describes.

    Args:
        text: an object of schema :data:`SCHEMA`.
        where: what errors begin with.
        folder: that the files it names are relative to.

    Raises:
        RequestError: as :func:`load`.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise RequestError(f"{where}: not JSON: {err}") from None
    if not isinstance(raw, dict):
        raise RequestError(f"{where}: must be one JSON object")
    raw = dict(raw)
    if (schema := raw.pop("schema", None)) != SCHEMA:
        raise RequestError(f"{where}: schema {schema!r}, this Sluice reads {SCHEMA!r}")
    known = [f.name for f in dataclasses.fields(Workload)]
    if unknown := [key for key in raw if key not in known]:
        raise RequestError(f"{where}: {unknown[0]} is no setting of a workload; those are"
                           f" {', '.join(known)}")  # fmt: skip
    for key in ("name", "prompts"):
        if key not in raw:
            raise RequestError(f"{where}: {key} is missing")
    for key in ("chat", "thinking"):
        if not isinstance(raw.get(key, False), bool):
            raise RequestError(f"{where}: {key} is {raw[key]!r}; must be true or false")
    name = _name(raw.pop("name"), where)
    prompts = _prompts(raw.pop("prompts"), where, folder)
    sampling = {key: raw[key] for key in raw if key not in ("chat", "thinking")}
    try:
        validate(Config(model="model", **sampling))
    except RequestError as err:
        raise RequestError(f"{where}: {err}") from None
    for key in ("temp", "top_p"):
        if key in raw:
            raw[key] = float(raw[key])  # 0 and 0.0 are the same workload
    return Workload(name, prompts, **raw)


def check_distinct(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
    """Return them if no two are of one name.

    Raises:
        RequestError: two are; rows could not be told apart.
    """
    found: dict[str, Workload] = {}
    for workload in workloads:
        if workload.name in found:
            raise RequestError(
                f"workload {workload.name} is there twice; give one of them another name"
            )
        found[workload.name] = workload
    return tuple(found.values())


def _prompts(raw: Any, where: str, folder: Path) -> tuple[Prompt, ...]:
    if not isinstance(raw, list) or not raw:
        raise RequestError(f"{where}: prompts must be a list of at least one prompt")
    prompts: dict[str, Prompt] = {}
    for number, one in enumerate(raw, 1):
        at = f"{where}: prompt {number}"
        if not isinstance(one, dict) or set(one) not in ({"name", "text"}, {"name", "file"}):
            raise RequestError(f'{at}: must be {{"name": …, "text": …}} or'
                               ' {"name": …, "file": …}')  # fmt: skip
        name = _name(one["name"], at)
        if name in prompts:
            raise RequestError(f"{at}: the name {name} is there twice; give it another")
        if "file" in one:
            if not isinstance(one["file"], str):
                raise RequestError(f"{at}: file must be the name of a file")
            text = _text(folder / one["file"], at)
        else:
            text = one["text"]
        prompts[name] = Prompt(name, _prompt_text(text, at))
    return tuple(prompts.values())


def _prompt_text(text: Any, where: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{where}: the prompt is empty or no text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(f"{where}: the prompt holds half a character (a lone surrogate)"
                           ) from None  # fmt: skip
    return text


def _name(name: Any, where: str) -> str:
    if (not isinstance(name, str) or not name.isprintable() or not name.strip()
            or len(name) > _NAME_MOST):  # fmt: skip
        raise RequestError(
            f"{where}: name {name!r}: must be 1 to {_NAME_MOST} printable characters"
        )
    return name


def _text(path: Path, where: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as err:
        raise RequestError(
            f"{where}: {path.name} is not UTF-8 at byte {err.start}; convert the file to UTF-8"
        ) from None
    except (OSError, ValueError) as err:
        reason = (err.strerror if isinstance(err, OSError) else None) or str(err)
        raise RequestError(f"{where}: {path.name} cannot be read: {reason}") from None


def _data(name: str) -> str:
    return files("sluice.sweep").joinpath("data", name).read_text(encoding="utf-8")
