from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

from sluice.triage import plots
from sluice.triage.page import Piece, aligned, page, settings

from .findings import ALIKE, FLIP, failed

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are balanced, and keeps everything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href", "srcset")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing() -> None:
    for finding in (FLIP, ALIKE, failed("no <free> cells")):
        text = page(finding)
        reader = Reader()
        reader.feed(text)
        assert reader.open == []
        assert reader.fetched == []
        for word in ("url(", "@import", "<script", "http"):
            assert word not in text


def test_what_the_runs_say_cannot_become_markup() -> None:
    text = page(failed("no <free> cells"))
    assert "<b>" not in text
    assert "a&lt;b&gt;" in text
    assert "no &lt;free&gt; cells" in text


def test_the_page_shows_texts_plots_and_settings() -> None:
    text = page(FLIP)
    assert text.count("<svg") == 3
    assert 'class="a differs">' in text
    assert '<tr class="differs"><td>ubatch</td><td>512</td><td>1</td></tr>' in text
    assert "1 of 512" in text
    assert text.endswith("</html>\n")
    assert page(ALIKE).count("<svg") == 0


def test_texts_are_aligned_by_token() -> None:
    assert aligned(FLIP) == [Piece(True, "def a", "def a"), Piece(False, " the", " a<b>")]
    assert aligned(ALIKE) == []


def test_settings_are_paired() -> None:
    assert settings(FLIP)[0] == ("ubatch", "512", "1", True)
    assert ("numerics", "default", "default", False) in settings(FLIP)


def test_plots_are_well_formed() -> None:
    located = FLIP.localisation
    assert located is not None
    for svg in (
        plots.margins(FLIP.steps, 2),
        plots.movements(FLIP.steps, None),
        plots.heat(located.nodes),
    ):
        ET.fromstring(svg)
    assert plots.movements(FLIP.steps, None).count('class="tick"') == 1
    cells = plots.heat(located.nodes)
    assert cells.count("<rect") == 3
    assert "layer 1 ffn_moe_out (MUL_MAT): 900 ulp" in cells
    assert ">outside<" in cells


def test_values_that_are_zero_or_endless_have_a_place() -> None:
    ET.fromstring(plots.heat(()))
    steps = [step for step in FLIP.steps if step.margin_a]
    ET.fromstring(plots.margins(steps[:1], 0))
