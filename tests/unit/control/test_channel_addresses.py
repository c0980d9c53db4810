"""Addresses of sockets."""

from pathlib import Path

import pytest

from dualpath.control.channel import LONGEST_SOCKET_PATH, socket_address
from dualpath.errors import ClusterError


def test_an_address_is_a_path_in_the_run_directory() -> None:
    assert socket_address(Path("/run/x"), "prefill-0.1") == "ipc:///run/x/prefill-0.1.sock"


def test_paths_that_the_kernel_would_refuse_are_refused_with_a_way_out() -> None:
    longest = Path("/" + "x" * (LONGEST_SOCKET_PATH - len("//a.sock")))
    assert len(socket_address(longest, "a")) == LONGEST_SOCKET_PATH + len("ipc://")
    for directory in (Path(f"{longest}x"), Path("/" + "ü" * (LONGEST_SOCKET_PATH // 2))):
        with pytest.raises(ClusterError, match=f"longer than {LONGEST_SOCKET_PATH} bytes; set TMPDIR"):
            socket_address(directory, "a")
