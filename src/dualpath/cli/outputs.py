"""Files that a command writes at its end are tried at its start: nobody should wait for a result that is then lost."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dualpath.errors import SettingsError


def check_output_file(flag: str, path: Path) -> None:
    """Make sure that ``path`` can be written; its directory is made, an existing file stays as it is.

    Raises:
        SettingsError: it cannot; names the flag and the path.
    """
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        existed = path.exists()
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as error:
        raise SettingsError(f"{flag}: cannot write {path}: {error.strerror}") from error
