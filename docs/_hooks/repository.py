"""Links every page to the repository that the site is built from: git's remote `origin`."""

import re
import subprocess
from typing import Any

HOST = r"(?:https://(?:[^/@]+@)?|(?:ssh://)?[\w.-]+@)(?P<host>[\w.-]+)(?::\d+)?"
REMOTE = re.compile(rf"{HOST}[:/]/?(?P<path>[^?#]+?)(?:\.git)?/?")


def on_config(config: Any) -> Any:
    """Set the link; without one, as in a clone of a folder, the pages have none."""
    asked = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True)  # noqa: S607 - found on the path
    if found := address(asked.stdout.strip()):
        config.repo_url, config.repo_name = found, found.rpartition("/")[2]
    return config


def address(remote: str) -> str | None:
    """The page of a remote, without a user or a token; None for a folder."""
    found = REMOTE.fullmatch(remote)
    return f"https://{found['host']}/{found['path']}" if found else None
