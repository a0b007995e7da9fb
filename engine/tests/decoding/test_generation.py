"""A generation over steps that the test chooses, with the real vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sluice.config import Config
from sluice.decoding.generation import Generation
from sluice.decoding.step import Step, row_sha256
from sluice.errors import RequestError, SystemFault
from sluice.llama.model import Model
from sluice.telemetry.evidence import Fingerprint, Group
from sluice.telemetry.metrics import Metrics

TEXT = "a é – 日本語 😀!"
Make = Callable[..., Generation]


@pytest.fixture(scope="module")
def loaded(model: Path) -> Iterator[Model]:
    one = Model(model, load_mtp=False, by_header=True)
    yield one
    one.close()


@pytest.fixture
def make(loaded: Model) -> Make:
    def make_(ids: list[int], *, n: int | None = None, record: bool = True) -> Generation:
        def steps(_metrics: Metrics) -> Iterator[Step]:
            for i, token in enumerate(ids):
                yield Step(token, np.array([i, 0], np.float32), Group(i, (token,), ()))
            raise SystemFault("asked for more than was wanted")

        return Generation(
            steps,
            model=loaded,
            config=Config(model="m", n=len(ids) if n is None else n),
            fingerprint=Fingerprint("1", "2", "default", "3"),
            prompt_ids=[1],
            metrics=Metrics(),
            record=record,
        )

    return make_


def eog(loaded: Model) -> int:
    return next(i for i in range(loaded.n_vocab) if loaded.is_eog(i))


def test_characters_span_tokens(loaded: Model) -> None:
    pieces = [loaded.piece(i) for i in loaded.tokenize(TEXT)]
    assert any(p.decode("utf-8", "ignore").encode() != p for p in pieces)


def test_every_text_is_whole_characters_and_they_join_to_the_whole(
    make: Make, loaded: Model
) -> None:
    generation = make(loaded.tokenize(TEXT))
    texts = []
    for token in generation:
        texts.append(token.text)
        assert "\ufffd" not in token.text
        assert generation.text == "".join(texts)
    assert "" in texts
    assert "".join(texts) == generation.text == TEXT
    assert generation.evidence().text_sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


def test_a_character_that_n_cuts_short_shows_once(make: Make, loaded: Model) -> None:
    ids = loaded.tokenize("x日")
    pieces = [loaded.piece(i) for i in ids]
    assert len(pieces[-1]) < 3  # the last character does span tokens
    generation = make(ids, n=len(ids) - 1)
    joined = "".join(token.text for token in generation)
    assert joined == generation.text == "x\ufffd"
    raw = b"".join(pieces[:-1])
    assert generation.evidence().text_sha256 == hashlib.sha256(raw).hexdigest()


def test_a_character_that_the_end_cuts_short_is_the_tail(make: Make, loaded: Model) -> None:
    ids = loaded.tokenize("x日")
    generation = make([*ids[:-1], eog(loaded)], n=50)
    joined = "".join(token.text for token in generation)
    assert (joined, generation.tail) == ("x", "\ufffd")
    assert joined + generation.tail == generation.text == generation.evidence().text


def test_an_end_after_whole_characters_has_no_tail(make: Make, loaded: Model) -> None:
    generation = make([*loaded.tokenize("x日"), eog(loaded)], n=50)
    assert "".join(token.text for token in generation) == generation.text == "x日"
    assert generation.tail == ""


def test_bytes_that_are_no_text_show_as_replacements(make: Make, loaded: Model) -> None:
    raw = {loaded.piece(i): i for i in range(loaded.n_vocab)}
    ids = [raw[b"\xff"], raw[b"a"], raw[b"\xe6"], raw[b"b"]]
    generation = make(ids)
    joined = "".join(token.text for token in generation)
    assert joined == generation.text == "\ufffda\ufffdb"


def test_an_end_of_generation_is_not_yielded_but_recorded(make: Make, loaded: Model) -> None:
    end = eog(loaded)
    generation = make([10, 11, end, 12], n=50)
    assert [token.id for token in generation] == [10, 11]
    evidence = generation.evidence()
    assert evidence.ids == [10, 11]
    assert evidence.stop.reason == "eog"
    assert evidence.stop.id == end
    assert evidence.stop.logits_sha256 == row_sha256(np.array([2, 0], np.float32))
    assert len(evidence.logits_sha256) == len(evidence.top2) == 2
    assert [g.step for g in evidence.groups] == [0, 1, 2]
    assert generation.metrics.n_generated == 2


def test_n_is_never_overshot_and_no_step_is_taken_beyond_it(make: Make) -> None:
    generation = make([10, 11, 12], n=2)
    assert [token.step for token in generation] == [0, 1]
    assert generation.evidence().stop.reason == "n"
    assert list(generation) == []


def test_an_end_at_the_last_step_is_an_end(make: Make, loaded: Model) -> None:
    generation = make([10, eog(loaded)], n=2)
    assert [token.id for token in generation] == [10]
    assert generation.evidence().stop.reason == "eog"


def test_evidence_is_refused_before_the_end(make: Make) -> None:
    generation = make([10, 11])
    for _ in range(2):
        with pytest.raises(RequestError, match="has not ended; iterate it first"):
            generation.evidence()
        next(generation)
    assert generation.run().evidence().ids == [10, 11]


def test_what_there_is_of_an_unfinished_run_can_be_asked_for(make: Make) -> None:
    generation = make([10, 11, 12])
    next(generation)
    evidence = generation.evidence(unfinished=True)
    assert evidence.ids == [10]
    assert evidence.stop.reason == "unfinished"
    assert len(evidence.logits_sha256) == len(evidence.top2) == 1
    assert generation.run().evidence(unfinished=True).stop.reason == "n"


def test_evidence_that_was_not_recorded_is_refused(make: Make) -> None:
    generation = make([10, 11], record=False).run()
    assert generation.ids == [10, 11]
    with pytest.raises(RequestError, match="generate with record=True"):
        generation.evidence()


def test_a_closed_generation_yields_no_more(make: Make) -> None:
    generation = make([10, 11, 12])
    next(generation)
    generation.close()
    generation.close()
    assert list(generation) == []
    assert generation.ids == [10]
    with pytest.raises(RequestError, match="has not ended"):
        generation.evidence()


def test_evidence_is_a_copy(make: Make) -> None:
    generation = make([10, 11]).run()
    generation.evidence().ids.append(9)
    assert generation.evidence().ids == [10, 11]
