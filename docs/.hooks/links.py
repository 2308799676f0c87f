"""Links of the pages to files outside ``docs``: each must exist, and leads to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+)([^)#\s]+)")
_ROOT = Path(__file__).parents[2]


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace each link to a file of the repository outside ``docs/``."""
    here = Path(config["docs_dir"], page.file.src_uri).parent

    def replace(found: re.Match[str]) -> str:
        target = (here / (found[1] + found[2])).resolve()
        if target.is_relative_to(config["docs_dir"]):
            return found[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_uri} has a link to {target}")
        return f"]({config['repo_url']}/blob/main/{target.relative_to(_ROOT)}"

    return _OUTSIDE.sub(replace, markdown)
