from __future__ import annotations

import pytest

from sluice.sweep.conclusions import Conclusion, conclude, in_band
from sluice.sweep.figures import figures
from sluice.sweep.ranking import rankings
from sluice.sweep.row import Row
from sluice.sweep.texts import texts

from .making import row


def arm(name: str, tokens: float, step_ms: float, spread: float = 0.005) -> list[Row]:
    rate = tokens / step_ms * 1000
    return [row(name, prompt, repeat, step_tokens=tokens, rate=rate * (1 + spread * (repeat - 1)))
            for prompt in "ab" for repeat in range(3)]  # fmt: skip


def concluded(rows: list[Row]) -> tuple[Conclusion, str]:
    found = figures(rows)
    (one,) = conclude(found, rankings(rows), texts(found))
    return one, " ".join(one.sentences)


GREEDY = [*arm("off", 1, 23.8), *arm("n_max=3", 3.60, 40.35), *arm("n_max=4", 4.20, 45.70),
          *arm("n_max=6", 5.20, 59.43)]  # fmt: skip


def test_a_settled_workload() -> None:
    one, words = concluded(GREEDY)
    assert one.fastest == ("n_max=4",)
    assert one.is_settled
    assert one.acceptance == pytest.approx(0.8)
    assert words.startswith("Fastest: n_max=4 at 91.9 tok/s (prompts 91.9 to 91.9), 3.0% ahead of"
                            " n_max=3 (89.2), outside the ")  # fmt: skip
    assert "2.19 times off (42.0 tok/s)" in words
    assert ("A step of n_max=4 takes 45.7 ms for 4.20 tokens, a token with MTP off 23.8 ms: each"
            " draft slot costs 5.5 ms, 23% of a token.") in words  # fmt: skip
    assert ("Going on to n_max=6, each further slot costs 6.9 ms (29% of a token) and must add 0.63"
            " tokens per step; it added 0.50, so it does not pay.") in words  # fmt: skip
    assert "Acceptance there is 0.80 over tokens and 0.80 over requests, above the often" in words
    assert "Every arm gave the same greedy text." in words


def test_a_tie_names_all_that_tie() -> None:
    one, words = concluded([*arm("off", 1, 23.8), *arm("n_max=2", 2.2, 35.0),
                            *arm("n_max=3", 2.5, 40.0)])  # fmt: skip
    assert one.fastest == ("n_max=2", "n_max=3")
    assert not one.is_settled
    assert words.startswith("n_max=2 (62.9 tok/s) and n_max=3 (62.5 tok/s) cannot be told apart:")


def test_the_longest_arm_is_told_what_one_more_slot_must_add() -> None:
    _, words = concluded([*arm("off", 1, 20.0), *arm("n_max=2", 2.5, 30.0)])
    assert "No longer draft was measured" in words
    assert "one more must add 0.42 tokens per step to pay" in words  # 5 ms × 2.5 / 30 ms


def test_drafting_that_loses_is_said_to_lose() -> None:
    one, words = concluded([*arm("off", 1, 6.3), *arm("n_max=3", 2.14, 16.0)])
    assert one.fastest == ("off",)
    assert one.acceptance is None
    assert "Drafting loses here: every arm that drafts is slower." in words
    assert "Going on to n_max=3, each further slot costs 3.2 ms" in words


def test_drafting_within_the_noise_is_not_said_to_win() -> None:
    _, words = concluded([*arm("off", 1, 20.0), *arm("n_max=2", 2.0, 39.9)])
    assert "inside the noise: drafting is not shown to gain anything" in words
    _, words = concluded([*arm("off", 1, 20.0), *arm("n_max=2", 2.0, 40.1)])
    assert "Drafting is not shown to gain anything here." in words


def test_a_slot_within_the_noise_is_said_to_be() -> None:
    _, words = concluded([*arm("off", 1, 20.0), *arm("n_max=2", 2.5, 30.0),
                          *arm("n_max=3", 2.9, 34.85)])  # fmt: skip
    assert "it added 0.40, so it does not pay, as far as the noise lets one tell." in words


def test_without_repeats_the_first_is_not_called_fastest() -> None:
    one, words = concluded([row(rate=50), row("n_max=2", rate=60, step_tokens=2)])
    assert one.fastest == ("n_max=2",)
    assert not one.is_settled
    assert "Nothing was repeated, so there is no noise floor" in words


def test_steps_without_a_draft_are_told_of() -> None:
    rows = [row(rate=50), row("n_max=6,p_min=0.9", rate=60, n_decoded=150, n_drafted=60,
                n_accepted=50, n_verify=40, n_undrafted=60)]  # fmt: skip
    _, words = concluded(rows)
    assert (
        "60 of its 100 steps verified no draft: its mean len, 2.25, does not count them." in words
    )


def test_arms_whose_text_differs_are_named() -> None:
    rows = [row(rate=50), row("n_max=2", rate=60, step_tokens=2, text_sha256="other")]
    _, words = concluded(rows)
    assert "The greedy text is not the same in every arm: a: off / n_max=2." in words


def test_refused_arms_are_told_of_with_the_rule() -> None:
    rows = [row(text_sha256=""), row("n_max=2", outcome="refused", error="--mtp with --temp 1"),
            row("n_max=3", outcome="failed", error="the server died")]  # fmt: skip
    one, words = concluded(rows)
    assert one.fastest == ("off",)
    assert "The only arm measured is off" in words
    assert "Drafting" not in words
    assert "1 request refused by rule (n_max=2): --mtp with --temp 1." in words
    assert "1 request failed (n_max=3): the server died." in words


def test_nothing_measured_is_said() -> None:
    one, words = concluded([row(outcome="failed", error="no answer")])
    assert one.fastest == ()
    assert words == "No arm was measured. 1 request failed (off): no answer."


def test_nothing_in_common_is_said() -> None:
    rows = [row("off", p) for p in "ab"] + [row("n_max=2", p) for p in "bc"]
    rows += [row("n_max=3", p) for p in "ca"]
    assert concluded(rows)[1].startswith("No prompt was measured with every arm")


def test_the_band_has_an_inside() -> None:
    assert [in_band(x) for x in (0.59, 0.6, 0.65, 0.7, 0.71)] == [
        "below", "in", "in", "in", "above",
    ]  # fmt: skip
