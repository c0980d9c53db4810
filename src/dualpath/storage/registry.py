"""Storage backends by name: one table of lazy factories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dualpath.errors import SettingsError
from dualpath.kvcache.chain import CacheNamespace
from dualpath.storage.base import Storage


@dataclass(frozen=True, slots=True)
class StorageSpec:
    """What every process of a cluster needs to open its store.

    ``root`` is a directory for ``files`` and unused for ``memory``; ``threads`` are I/O threads of this process.
    """

    namespace: CacheNamespace
    root: str
    threads: int = 2
    verify_checksums: bool = True
    backend: str = "files"


def _files(spec: StorageSpec) -> Storage:
    from dualpath.storage.files import FileStorage

    return FileStorage(spec.root, spec.namespace, threads=spec.threads, verify_checksums=spec.verify_checksums)


def _memory(spec: StorageSpec) -> Storage:
    from dualpath.storage.memory import MemoryStorage

    return MemoryStorage(spec.namespace.block_bytes)


BACKENDS: dict[str, Callable[[StorageSpec], Storage]] = {"files": _files, "memory": _memory}
"""``memory`` is one process' own; a cluster of processes needs ``files``."""


def open_storage(spec: StorageSpec) -> Storage:
    """The storage that ``spec`` describes.

    Raises:
        SettingsError: there is no such backend.
        StorageError: its store cannot be used.
    """
    factory = BACKENDS.get(spec.backend)
    if factory is None:
        raise SettingsError(f"storage backend {spec.backend!r} is not one of {', '.join(BACKENDS)}")
    return factory(spec)
