"""Reports as files, and the versions that belong into them."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPORTED_PACKAGES = ("dualpath", "torch", "transformers", "numpy")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for package in REPORTED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Write ``report`` as JSON, creating the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, default=str, allow_nan=False) + "\n", encoding="utf-8")
