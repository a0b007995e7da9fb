"""Arms of Sluice's own engine, in this process: one session at a time."""

from __future__ import annotations

from collections.abc import Callable

from sluice import __version__
from sluice.bundled import model_path
from sluice.config import Config, validate
from sluice.decoding.fingerprint import fingerprint
from sluice.decoding.session import Session
from sluice.errors import ModelError, RequestError
from sluice.gguf.shards import read_model
from sluice.sweep.arm import Arm
from sluice.sweep.machine import machine
from sluice.sweep.measured import measured
from sluice.sweep.row import Identity, Row
from sluice.sweep.schedule import Request

WARM_UP_IDS = 16
WARM_UP_TOKENS = 4


def engine_identity(config: Config, n: int | None) -> Identity:
    """The identity of a sweep in this process.

    Args:
        config: what all arms share.
        n: tokens a request, where that is not the workloads' own.

    Raises:
        ModelError: the model cannot be read.
    """
    config = config.resolved()
    print_ = fingerprint(read_model(model_path(config.model)), config.numerics)
    settings = {
        "file": config.model,
        "sluice": __version__,
        "numerics": config.numerics,
        "flash_attn": config.flash_attn,
        "ctx": str(config.ctx),
        "ubatch": str(config.ubatch),
    }
    return Identity(
        target="engine",
        model=print_.model_sha256,
        build=f"llama-cpp-python {print_.llama_cpp_python}, {print_.system_info}",
        threads=config.threads,
        machine=machine(),
        settings=settings | ({} if n is None else {"n": str(n)}),
    )


class EngineArms:
    """Opens a session for an arm: the whole model is loaded, or streamed, anew.

    Args:
        config: what all arms share; ``model`` among it.
        warn: receives one-line warnings of the sessions, each text once.
    """

    def __init__(self, config: Config, warn: Callable[[str], None] = lambda _text: None) -> None:
        self._config = config
        self._warn = warn
        self._warned: set[str] = set()

    def refusal(self, request: Request) -> str:
        """The engine's own words where arm and workload exclude each other; empty if they do not.

        An arm that drafts and a workload that samples do.
        """
        try:
            validate(
                self._config.replace(
                    **request.arm.config_fields(), **request.workload.config_fields(request.repeat)
                )
            )
        except RequestError as err:
            return str(err)
        return ""

    def open(self, arm: Arm, first: Request) -> EngineArm:
        """A session; a few tokens are generated in it first, unless it streams.

        Raises:
            SluiceError: the model cannot be opened as the arm says.
        """
        try:
            model_path(self._config.model)
        except RequestError as err:  # it was there when the sweep began
            raise ModelError(str(err)) from None
        session = Session(self._config.replace(**arm.config_fields()), warn=self._once)
        try:
            if not arm.is_streamed:
                ids = session.tokenize(first.prompt.text)[:WARM_UP_IDS]
                session.generate(ids, n=WARM_UP_TOKENS, record=False).run()
        except BaseException:
            session.close()
            raise
        return EngineArm(session)

    def _once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


class EngineArm:
    """An open session as an arm."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, request: Request, blank: Row) -> Row:
        """One generation.

        Raises:
            SluiceError: it failed, or the prompt does not fit.
        """
        generation = self._session.generate(
            request.prompt.text, **request.workload.config_fields(request.repeat)
        ).run()
        return measured(
            blank, request.arm, generation.evidence(), generation.metrics, is_cold=request.is_cold
        )

    def close(self) -> None:
        """Free the model."""
        self._session.close()
