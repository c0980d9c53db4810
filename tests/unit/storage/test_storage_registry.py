"""Backends by name."""

from pathlib import Path

import pytest

from dualpath.errors import SettingsError
from dualpath.kvcache.chain import CacheNamespace
from dualpath.storage.files import FileStorage
from dualpath.storage.memory import MemoryStorage
from dualpath.storage.registry import BACKENDS, StorageSpec, open_storage

NAMESPACE = CacheNamespace("fingerprint", "float32", 4, 1024)


def test_each_backend_opens_by_its_name(tmp_path: Path) -> None:
    expected = {"files": FileStorage, "memory": MemoryStorage}
    assert set(BACKENDS) == set(expected)
    for name, kind in expected.items():
        storage = open_storage(StorageSpec(NAMESPACE, str(tmp_path), backend=name))
        assert isinstance(storage, kind)
        storage.close()


def test_an_unknown_backend_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'floppy' is not one of files, memory"):
        open_storage(StorageSpec(NAMESPACE, "unused", backend="floppy"))
