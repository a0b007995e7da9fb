from __future__ import annotations

import os

import pytest

from sluice.llama import waiting


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in waiting.SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def cores(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(n)), raising=False)


def test_spins_are_short_where_cores_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, waiting.FEW_CORES)
    assert waiting.shorten_where_cores_are_few()
    assert os.environ["GOMP_SPINCOUNT"] == waiting.SPIN_COUNT


def test_many_cores_spin_as_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cores(monkeypatch, waiting.FEW_CORES + 1)
    assert not waiting.shorten_where_cores_are_few()
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize("name", waiting.SETTINGS)
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cores(monkeypatch, 1)
    monkeypatch.setenv(name, "ACTIVE")
    assert not waiting.shorten_where_cores_are_few()
    assert [os.environ.get(one) for one in waiting.SETTINGS if one != name] == [None]


def test_it_is_done_before_llama_cpp_is_loaded(child: object) -> None:
    ended = child(  # type: ignore[operator]
        "import os, sys\n"
        "for name in ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT'): os.environ.pop(name, None)\n"
        "os.sched_getaffinity = lambda pid: {0}\n"
        "import sluice.llama\n"
        "print(os.environ.get('GOMP_SPINCOUNT'), 'llama_cpp' in sys.modules)\n"
    )
    assert ended.out.split() == [waiting.SPIN_COUNT, "False"]
