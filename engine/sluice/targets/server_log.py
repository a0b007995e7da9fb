"""What a llama-server says while it runs: its last lines, and what it says of its drafts."""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import IO

_LINES = 5000  # all of --help, and more than one request prints
_LINE_BYTES = 4096
_WORDS = 300
# What names a cause, among lines that name consequences.
_TELLING = re.compile(r"error|fail|invalid|unknown|not found|no such|could ?n[o']t|abort", re.I)
# The time since the start and the level, which this llama.cpp sets before every line.
_STAMP = re.compile(r"^\d+(?:\.\d+)+ [A-Z] +")
# "draft acceptance rate = " until June 2026, then without "rate" and with a mean length, in
# full at first: "mean acceptance length = 2.92, acceptance rate per position = (…)".
_DRAFTS = re.compile(
    r"draft acceptance(?: rate)? = *(?P<rate>[\d.]+)"
    r" \( *(?P<accepted>\d+) accepted / *(?P<drafted>\d+) generated\)"
    r"(?:, mean (?:acceptance length|len) = *(?P<mean_len>\d+\.\d+))?"
)


@dataclass(frozen=True, slots=True)
class DraftLine:
    """The line that a llama-server prints for a request that drafted something.

    ``mean_len`` is 1 + accepted per verify step to two decimals; None where the server is of a
    time when it was not printed. ``text`` is the line itself.
    """

    drafted: int
    accepted: int
    mean_len: float | None
    text: str

    @property
    def verify_steps(self) -> int | None:
        """Steps that verified a draft, where only one number of them gives this mean length."""
        if self.mean_len is None or not self.accepted:
            return None
        # Every step drafted a token at least.
        printed = f"{self.mean_len:.2f}"
        steps = range(1, self.drafted + 1)
        fitting = [n for n in steps if f"{1 + self.accepted / n:.2f}" == printed]
        return fitting[0] if len(fitting) == 1 else None


def draft_line(line: str) -> DraftLine | None:
    """What ``line`` says of a request's drafts, in any of llama.cpp's spellings; or None."""
    found = _DRAFTS.search(line)
    if found is None:
        return None
    mean_len = found["mean_len"]
    return DraftLine(
        drafted=int(found["drafted"]),
        accepted=int(found["accepted"]),
        mean_len=None if mean_len is None else float(mean_len),
        text=line,
    )


class ServerLog:
    """Reads a stream to its end in a thread, so that its writer never waits; keeps the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._count = 0
        self._has_ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._thread.start()

    @property
    def mark(self) -> int:
        """How many lines there were so far; see ``since``."""
        with self._changed:
            return self._count

    def since(self, mark: int = 0) -> list[str]:
        """The lines after ``mark``, of those that are still kept."""
        with self._changed:
            new = min(self._count - mark, len(self._lines))
            return list(self._lines)[len(self._lines) - new :]

    def draft_line(
        self, mark: int, drafted: int, accepted: int, timeout_s: float
    ) -> DraftLine | None:
        """The draft line with these figures after ``mark``; the log may come after the answer."""

        def found() -> DraftLine | None:
            for line in map(draft_line, self.since(mark)):
                if line is not None and (line.drafted, line.accepted) == (drafted, accepted):
                    return line
            return None

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or self._has_ended, timeout_s)
            return found()

    def last_words(self) -> str:
        """What the last lines say of a cause, else the very last one; one line, empty if none."""
        said = [line for line in (_STAMP.sub("", one).strip() for one in self.since()) if line]
        telling = [line for line in said[-40:] if _TELLING.search(line)]
        words = " | ".join((telling or said[-1:])[:3])
        return words if len(words) <= _WORDS else f"{words[:_WORDS]}…"

    def join(self, timeout_s: float) -> None:
        """Wait until the stream has been read to its end."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        with self._stream:
            while raw := self._stream.readline(_LINE_BYTES):
                with self._changed:
                    self._lines.append(raw.decode("utf-8", "replace").rstrip("\r\n"))
                    self._count += 1
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
