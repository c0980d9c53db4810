"""All experiments by name, in the order of the paper, then those beyond it."""

from __future__ import annotations

from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.offline import OFFLINE
from dualpath.evaluation.online import ONLINE
from dualpath.evaluation.real_traces import REAL_TRACES

EXPERIMENTS: dict[str, Experiment] = {experiment.key: experiment for experiment in (*OFFLINE, *ONLINE, *REAL_TRACES)}
"""What ``dualpath reproduce`` runs; the keys are what ``--only`` takes."""
