"""Where the bundled model and the recorded goldens are: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from sluice.errors import ModelError, RequestError

BUNDLED = "bundled"
MODEL_NAME = "sluice-python-11m-Q8_0.gguf"

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


def model_path(model: str) -> Path:
    """The file that ``model`` names; the word ``bundled`` names the model shipped with Sluice.

    Raises:
        RequestError: there is no such file.
        ModelError: the bundled model is not in this installation.
    """
    if model != BUNDLED:
        return _named(model)
    for folder in (_PACKAGE / "_bundled" / "models", _CHECKOUT / "gates" / "models"):
        if (folder / MODEL_NAME).is_file():
            return folder / MODEL_NAME
    raise ModelError(
        f"bundled: {MODEL_NAME} is not in this installation; reinstall sluicegate, or name a gguf"
    )


def _named(model: str) -> Path:
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            raise RequestError(f"{model}: is a folder; give the gguf file in it")
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else str(err)
        raise RequestError(f"{model}: no such file: {reason}; give the path of a gguf") from None
    if exists:
        raise RequestError(f"{model}: is not a regular file; give the path of a gguf")
    raise RequestError(f"{model}: no such file; give the path of a gguf, or the word bundled")


def goldens_folder() -> Path:
    """The folder of recorded goldens that ships with this installation."""
    shipped = _PACKAGE / "_bundled" / "goldens"
    return shipped if shipped.is_dir() else _CHECKOUT / "goldens"
