"""Report, screen, document, plots, page and triage lines: all from the same rows."""

from __future__ import annotations

import dataclasses
import json
import random
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sluice.sweep.document import document, to_json
from sluice.sweep.drawing import plots
from sluice.sweep.folder import write_prompts, write_report
from sluice.sweep.page import page
from sluice.sweep.report import Report, ordered, report
from sluice.sweep.row import Row
from sluice.sweep.rows import Recorded
from sluice.sweep.screen import screen
from sluice.sweep.triaged import prompt_file
from sluice.sweep.workload import Prompt, Workload

from .making import IDENTITY, row

PNG = b"\x89PNG\r\n\x1a\n"
ENGINE = dataclasses.replace(IDENTITY, settings={"file": "bundled", "ctx": "8192"})


def made(arm: str, *, rate: float, step_tokens: float = 1.0, **changes: Any) -> list[Row]:
    return [
        row(arm, prompt, repeat, rate=rate + repeat / 10, step_tokens=step_tokens,
            identity=ENGINE.key, **changes)
        for prompt in ("a", "b")
        for repeat in (0, 1)
    ]  # fmt: skip


ROWS = [
    *made("n_max=4", rate=11.0, step_tokens=2.4, text_sha256="u"),
    *made("n_max=2", rate=20.0, step_tokens=1.9, offered_at=(100, 100), accepted_at=(60, 30)),
    *made("off", rate=10.0),
    *made("n_max=4,p_min=0.7", rate=18.0, step_tokens=1.8),
    *made("off,moe_stream", rate=3.0, read_bytes=1 << 30, stall_s=1.0, is_cold=True),
    *made("off,moe_stream", rate=5.0, read_bytes=1 << 29, stall_s=0.5, is_cold=False),
    row("n_max=2", workload="sampled", outcome="refused", error="by <rule>", identity=ENGINE.key),
    row("off", workload="sampled", outcome="failed", error="it died", identity=ENGINE.key),
]


@pytest.fixture(scope="module")
def found() -> Report:
    return report(Recorded(ENGINE, tuple(ROWS)))


class Reader(HTMLParser):
    """Checks that tags are balanced, and keeps everything that would be fetched."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.sources += [str(v) for k, v in attrs if k in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_rows_are_shown_in_an_order_that_they_were_not_made_in() -> None:
    names = list(dict.fromkeys(one.arm for one in ordered(ROWS)))
    assert names == ["off", "n_max=2", "n_max=4", "n_max=4,p_min=0.7", "off,moe_stream"]
    shuffled = random.Random(3).sample(ROWS, len(ROWS))
    again = list(dict.fromkeys(one.arm for one in ordered(shuffled)))
    assert [name for name in again if name in names[:4]] == names[:4]


def test_the_screen_says_of_what_how_much_and_what_follows(found: Report) -> None:
    text = screen(found)
    assert text.startswith("target   engine\n")
    assert "24 requests measured, 1 refused by rule, 1 failed." in text
    assert "Fastest: n_max=2 at 20.1 tok/s" in text
    assert "1 refused (n_max=2): by <rule>" in text
    assert text.count("by tok/s; arms within the noise") == 1, "each heading is explained once"
    lines = text.splitlines()
    heading = next(line for line in lines if line.startswith("  arm"))
    cells = next(line for line in lines if line.startswith("  n_max=2"))
    assert cells.index("20.1") + 4 == heading.index("tok/s") + 5, "numbers stand under their heads"
    assert text == screen(report(Recorded(ENGINE, tuple(ROWS))))


def test_texts_that_differ_come_with_a_command_that_can_be_given(found: Report) -> None:
    assert len(found.triage) == 2
    words = shlex.split(found.triage[0])
    assert words[:3] == ["sluice", "triage", "--a"]
    a, b = shlex.split(words[3]), shlex.split(words[5])
    file = prompt_file("code", "a")
    assert a == ["bundled", "-f", file, "-n", "241", "-t", "2", "-c", "8192"]
    assert b == [*a, "--mtp", "--draft", "4"]
    assert found.triage[0] in screen(found)


def test_texts_of_a_server_are_not_for_a_triage_of_ours() -> None:
    server = dataclasses.replace(ENGINE, target="server-cmd")
    rows = tuple(dataclasses.replace(one, identity=server.key) for one in ROWS)
    assert report(Recorded(server, rows)).triage == ()


def test_a_prompt_s_file_is_a_plain_name_and_every_prompt_has_its_own() -> None:
    names = [
        prompt_file(w, p) for w, p in (("a/b", "../c"), ("a-b", "-c"), ("Ä", "?"), ("a", ".b"))
    ]
    assert len(set(names)) == 4
    for name in names:
        assert Path(name).parent == Path("prompts")
        assert not Path(name).name.startswith(".")
        assert name.isascii()


def test_the_prompts_are_written_as_they_are_sent(tmp_path: Path) -> None:
    write_prompts(tmp_path, [Workload("w", (Prompt("p", "a\r\nb\n\u00e9"),))])
    assert (tmp_path / prompt_file("w", "p")).read_bytes() == "a\r\nb\n\u00e9".encode()


def test_the_document_is_json_with_the_table_s_figures(found: Report) -> None:
    values = json.loads(to_json(document(found)))
    assert values["schema"] == "sluice-sweep-figures/1"
    code, sampled = values["workloads"]
    assert [arm["name"] for arm in code["arms"]][:2] == ["off", "n_max=2"]
    assert code["arms"][1]["acceptance_tokens"] == 0.45
    assert code["arms"][1]["slot_off"]["against"] == "off"
    assert code["conclusion"]["fastest"] == ["n_max=2"]
    assert sampled["ranking"] is None
    assert values["requests"] == {"ok": 24, "refused": 1, "failed": 1}


def test_there_is_a_plot_of_each_kind_and_the_same_rows_give_the_same_bytes(
    found: Report,
) -> None:
    drawn = plots(found)
    assert [plot.file for plot in drawn] == ["rates.png", "steps.png", "acceptance.png",
                                             "places.png"]  # fmt: skip
    assert all(plot.png.startswith(PNG) for plot in drawn)
    assert [plot.png for plot in plots(found)] == [plot.png for plot in drawn]


def test_plots_follow_the_rows(found: Report) -> None:
    other = [dataclasses.replace(one, effective_s=one.effective_s * (1 + one.n_drafted))
             for one in ROWS]  # fmt: skip
    changed = {p.file: p.png for p in plots(report(Recorded(ENGINE, tuple(other))))}
    same = {p.file for p in plots(found) if changed[p.file] == p.png}
    assert same == {"places.png"}, "which knows no clock"


def test_nothing_is_drawn_of_nothing() -> None:
    refused = row("off", outcome="refused", error="x", identity=ENGINE.key)
    nothing = report(Recorded(ENGINE, (refused,)))
    assert plots(nothing) == ()
    assert "No arm was measured" in screen(nothing)


@pytest.mark.parametrize("name", ["$x^{$", "日本", "<b>&", "a" * 60])
def test_a_workload_may_have_any_name(name: str) -> None:
    rows = [dataclasses.replace(one, workload=name) for one in ROWS[:12]]
    strange = report(Recorded(ENGINE, tuple(rows)))
    assert len(plots(strange)) == 4
    text = page(strange, ())
    assert "<b>&" not in text
    reader = Reader()
    reader.feed(text)
    assert reader.open == []


def test_the_page_is_whole_and_fetches_nothing(found: Report) -> None:
    text = page(found, plots(found))
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.sources) == 4
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert "by &lt;rule&gt;" in text
    assert text.count('class="fastest"') >= 1
    for line in found.triage:
        assert line.split(" --b ")[0].split("'")[0] in text


def test_the_folder_holds_it_all(found: Report, tmp_path: Path) -> None:
    write_report(tmp_path, found)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["acceptance.png", "figures.json", "index.html", "places.png", "rates.png",
                     "steps.png", "table.txt"]  # fmt: skip
    assert (tmp_path / "table.txt").read_text(encoding="utf-8") == screen(found)
