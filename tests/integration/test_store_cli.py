"""``dualpath store``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dualpath.cli.store import store
from dualpath.errors import StoreFormatError, StoreInUse
from dualpath.kvcache.chain import CacheNamespace, block_keys
from dualpath.storage.base import BlockWrite
from dualpath.storage.directory import block_path
from dualpath.storage.files import FileStorage, IndexLease

NAMESPACE = CacheNamespace("cafe0123", "bfloat16", 1, 2048)
KEYS = block_keys(NAMESPACE.digest, [1, 2, 3], 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    storage = FileStorage(tmp_path, NAMESPACE)
    for depth, key in enumerate(KEYS):
        storage.write([BlockWrite(key, KEYS[depth - 1] if depth else None, depth, memoryview(bytes(2048)))]).result()
    storage.close()
    return tmp_path


def damage(root: Path) -> Path:
    path = Path(block_path(str(root / NAMESPACE.digest.hex()), KEYS[2]))
    path.write_bytes(path.read_bytes()[:-1])
    return path


def run(*arguments: str | Path, confirm: str | None = None) -> Result:
    return CliRunner().invoke(store, [str(argument) for argument in arguments], input=confirm)


def test_stats(root: Path) -> None:
    shown = run("stats", root)
    assert shown.exit_code == 0
    for text in ("cafe0123", "bfloat16", "18 KiB"):
        assert text in shown.output
    (found,) = json.loads(run("stats", root, "--json").output)
    assert (found["blocks"], found["file_bytes"], found["description"]["block_tokens"]) == (3, 3 * 6144, 1)


def test_verify_tells_good_from_bad_by_its_exit_status(root: Path) -> None:
    good = run("verify", root)
    assert (good.exit_code, good.output) == (0, "3 good blocks (6 KiB), 0 bad files, 0 deleted\n")
    path = damage(root)
    bad = run("verify", root)
    assert bad.exit_code == 1
    assert bad.output == f"bad: {path}: it has 6143 bytes, not 6144\n2 good blocks (4 KiB), 1 bad files, 0 deleted\n"
    listed = run("verify", root, "--json")
    assert listed.exit_code == 1
    assert [found["path"] for found in json.loads(listed.output)["bad"]] == [str(path)]


def test_the_command_itself_ends_with_that_exit_status(root: Path) -> None:
    command = [sys.executable, "-m", "dualpath.cli.main", "store", "verify", str(root)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    damage(root)
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_verify_deletes_what_is_bad_on_request(root: Path) -> None:
    path = damage(root)
    assert run("verify", root, "--delete").exit_code == 0
    assert not path.exists()
    assert run("verify", root).exit_code == 0


def test_clear_asks_first(root: Path) -> None:
    refused = run("clear", root, confirm="n\n")
    assert refused.exit_code == 1
    assert "Delete 3 blocks" in refused.output
    assert json.loads(run("stats", root, "--json").output)[0]["blocks"] == 3
    assert json.loads(run("clear", root, "--yes", "--json").output) == {"deleted": 3}
    assert json.loads(run("stats", root, "--json").output) == []


def test_errors_are_raised_for_the_main_program_to_show(root: Path, tmp_path: Path) -> None:
    with IndexLease(root):
        assert isinstance(run("clear", root, "--yes").exception, StoreInUse)
    assert isinstance(run("verify", tmp_path / "nowhere").exception, StoreFormatError)
