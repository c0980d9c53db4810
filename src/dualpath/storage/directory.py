"""How a store lies on disk: ``store.json``, a directory per namespace, blocks in 256 hashed directories (paper A.5).

::

    <root>/store.json                            format and version
    <root>/owner.lock                            lease of the index owner
    <root>/<namespace>/namespace.json            what the namespace stands for
    <root>/<namespace>/ab/abcd….kv               a block
    <root>/<namespace>/tmp/<host>-<pid>-….tmp    a block being written
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dualpath.errors import StorageError, StoreFormatError
from dualpath.kvcache.chain import CacheNamespace
from dualpath.storage.hosts import host_tag, process_alive
from dualpath.types import BlockKey

STORE_FORMAT = "dualpath-store"
STORE_VERSION = 2
STORE_FILE = "store.json"
LOCK_FILE = "owner.lock"
NAMESPACE_FILE = "namespace.json"
TEMPORARIES = "tmp"
BLOCK_SUFFIX = ".kv"
STALE_TEMPORARY_S = 600.0
"""Age at which a temporary of another host's process counts as abandoned."""
_NOT_FOREIGN = (LOCK_FILE, STORE_FILE, "lost+found")


def create_store(root: Path) -> None:
    """Make ``root`` a store, or check that it is one.

    Raises:
        StoreFormatError: another format version, or a directory with other content.
        StorageError: the directory cannot be created or used.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / STORE_FILE).exists() and not _has_foreign_content(root):
            _write_json(root / STORE_FILE, {"format": STORE_FORMAT, "version": STORE_VERSION})
    except OSError as error:
        raise StorageError(f"cannot use {root} as a block store: {error.strerror}") from error
    check_store(root)


def check_store(root: Path) -> None:
    """Check that ``root`` is a store of this format version.

    Raises:
        StoreFormatError: it is not.
    """
    found = _read_json(root / STORE_FILE)
    if found is None or found.get("format") != STORE_FORMAT:
        raise StoreFormatError(f"{root} is no DualPath store: it has no valid {STORE_FILE}")
    if found.get("version") != STORE_VERSION:
        raise StoreFormatError(
            f"the store {root} has format version {found.get('version')}, this program reads and writes {STORE_VERSION}"
        )


def open_namespace(root: Path, namespace: CacheNamespace) -> Path:
    """The namespace's directory, created if needed.

    Raises:
        StoreFormatError: the directory is another namespace's.
        StorageError: it cannot be created.
    """
    directory = root / namespace.digest.hex()
    try:
        (directory / TEMPORARIES).mkdir(parents=True, exist_ok=True)
        if not (directory / NAMESPACE_FILE).exists():
            _write_json(directory / NAMESPACE_FILE, asdict(namespace))
    except OSError as error:
        raise StorageError(f"cannot create {directory}: {error.strerror}") from error
    if (found := describe_namespace(directory)) != asdict(namespace):
        raise StoreFormatError(f"{directory} holds blocks of {found}, not of {asdict(namespace)}")
    return directory


def namespace_directories(root: Path) -> list[Path]:
    """Directories of all namespaces of a store."""
    return sorted(path.parent for path in root.glob(f"*/{NAMESPACE_FILE}"))


def describe_namespace(directory: Path) -> dict[str, Any]:
    """What ``namespace.json`` says; empty if it is unreadable."""
    return _read_json(directory / NAMESPACE_FILE) or {}


def block_path(directory: str, key: BlockKey) -> str:
    """Path of a block in a namespace's directory."""
    name = key.hex()
    return f"{directory}/{name[:2]}/{name}{BLOCK_SUFFIX}"


def block_entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    """Directory entries of a namespace's block files; directories that vanish meanwhile are left out."""
    for hashed in _entries(directory):
        if len(hashed.name) == 2:
            for entry in _entries(hashed.path):
                if entry.name.endswith(BLOCK_SUFFIX):
                    yield entry


def temporary_prefix(pid: int) -> str:
    """Start of the names of a process' temporaries."""
    return f"{host_tag()}-{pid}-"


def stale_temporaries(directory: Path) -> list[Path]:
    """Temporaries whose writer is dead, or which are too old to be still written."""
    host, now_s = host_tag(), time.time()
    stale = []
    for entry in _entries(directory / TEMPORARIES):
        owner_host, _, rest = entry.name.partition("-")
        pid = rest.partition("-")[0]
        dead = owner_host == host and pid.isdecimal() and not process_alive(int(pid))
        if dead or _age_s(entry, now_s) > STALE_TEMPORARY_S:
            stale.append(Path(entry.path))
    return stale


def _age_s(entry: os.DirEntry[str], now_s: float) -> float:
    try:
        return now_s - entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _entries(path: Path | str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            yield from found
    except (FileNotFoundError, NotADirectoryError):
        return


def _has_foreign_content(root: Path) -> bool:
    """Whether ``root`` holds anything but the traces of another process that is just creating the store."""
    foreign = any(not name.startswith(_NOT_FOREIGN) for name in os.listdir(root))
    # A store that another process has completed since we looked for its store.json is not foreign either.
    return foreign and not (root / STORE_FILE).exists()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """Create or replace a small file at once, so that nobody sees it in part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
