"""Reports as files."""

import json
from pathlib import Path

from tests.support.system_results import BASIC

from dualpath.cli.report import installed_versions, write_report
from dualpath.types import Role
from dualpath.workload.report import build_report


def test_the_report_is_json(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report = build_report([BASIC], {"prefill": 1, "role": Role.PREFILL}, installed_versions())
    write_report(path, report)
    read = json.loads(path.read_text())
    assert read["settings"] == {"prefill": 1, "role": "prefill"}
    assert read["versions"] == installed_versions()
    assert {"python", "torch"} <= set(read["versions"])
    assert read["systems"] == report["systems"]
