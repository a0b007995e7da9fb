from __future__ import annotations

from sluice.triage.report import WIDTH, lines, place, summary

from .findings import ALIKE, DIFFERENCE, FLIP, failed


def test_a_summary_is_one_line() -> None:
    assert summary(FLIP) == (
        "NEAR_TIE_FLIP; ids at step 2, position 11, character 6; first in layer 0 ffn_moe_logits;"
        " turned by ubatch through sgemm"
    )
    assert summary(ALIKE) == "IDENTICAL"


def test_a_screen_says_what_where_and_through_what() -> None:
    text = lines(FLIP)
    joined = " ".join(" ".join(text).split())
    assert text[0].startswith("NEAR_TIE_FLIP: arithmetic of another batch width")
    assert text[1] == "  - the margin is within the movement"
    assert "A  plain (3 tokens, run here)" in text
    assert "first difference: ids at step 2, position 11, character 6: token 7 / 9" in text
    assert "  A  token 7 ' the', logits 5.25 over 5.125 of 9 ' a<b>', margin 0.125 (16 ulp)" in text
    assert "a logit moved by 0.2 (40 ulp) at most; logits first moved at step 1" in joined
    assert "shapes 8 / 8 × 4, 1 row / 4 rows in the decode" in joined
    assert "last that agreed: layer 0 ffn_norm; 120 rows of nodes compared" in joined
    assert "expert 3, m.gguf at byte 4096 + 17, 1 of 512" in joined
    assert "turned by: ubatch (of ubatch; 2 arms, compared by ids)" in text
    assert "    ubatch -> as B: step 2" in text
    assert "    ubatch: 512 / 1" in text
    assert text[-1] == "note: one note"
    assert max(len(line) for line in text) <= WIDTH


def test_identical_runs_have_no_more_to_say() -> None:
    assert lines(ALIKE)[0].startswith("IDENTICAL: every compared value is the same")
    assert len(lines(ALIKE)) == 4


def test_the_error_that_ended_a_side_is_told() -> None:
    assert any("ended by: no free cells" in line for line in lines(failed("no free cells")))


def test_a_place_names_only_what_is_known() -> None:
    assert place(FLIP.differences[0]) == "config"
    assert place(DIFFERENCE) == "ids at step 2, position 11, character 6"
