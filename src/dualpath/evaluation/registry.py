"""All experiments by name, in the order of the paper, then those beyond it."""

from __future__ import annotations

from dualpath.evaluation.ablation import ABLATION
from dualpath.evaluation.beyond import BEYOND
from dualpath.evaluation.experiment import Experiment
from dualpath.evaluation.figures_static import STATIC
from dualpath.evaluation.offline import OFFLINE
from dualpath.evaluation.online import ONLINE
from dualpath.evaluation.real_traces import REAL_TRACES
from dualpath.evaluation.scale import SCALE
from dualpath.evaluation.small_model import SMALL_MODEL

PAPER = (*STATIC, *OFFLINE, *SMALL_MODEL, *ABLATION, *ONLINE, *SCALE)
"""Tables and figures of the paper."""
EXPERIMENTS: dict[str, Experiment] = {one.key: one for one in (*PAPER, *BEYOND, *REAL_TRACES)}
"""What ``dualpath reproduce`` runs; the keys are what ``--only`` takes."""
