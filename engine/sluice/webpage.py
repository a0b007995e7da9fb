"""Pages of HTML that need nothing beside them: one way to make them, and one style."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sluice import __version__


def render(package: str, **values: Any) -> str:
    """The page that ``templates/page.html.j2`` of ``package`` makes of ``values``, LF line ends.

    A template also knows ``style``, the rules that all pages share, and ``version``.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style = files("sluice").joinpath("templates", "style.css").read_text(encoding="utf-8")
    source = files(package).joinpath("templates", "page.html.j2").read_text(encoding="utf-8")
    template = environment.from_string(source)
    text: str = template.render(version=__version__, style=Markup(style.rstrip("\n")), **values)
    return text.rstrip("\n") + "\n"
