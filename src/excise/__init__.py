"""Train language models whose knowledge can be cut out again.

documents            texts, their true category and the label that training sees      excise.data
-> packed rows       documents of any label side by side, no padding                  excise.data.packing
-> routed training   what a row may see and update, by its label                      excise.routing, excise.train
-> ablation          a module is taken out, and its knowledge with it                 excise.model.ablation
-> calibration       one bias per logit, so that losses compare fairly                excise.evals.calibration
-> evaluation        losses before ablation, after it, and calibrated                 excise.evals
-> report            a table, a picture and a page                                    excise.report
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from excise.config import override as override
    from excise.data.packing import Batch as Batch
    from excise.data.packing import Corpus as Corpus
    from excise.model.ablation import ablate as ablate
    from excise.model.gpt import GPT as GPT
    from excise.model.gpt import GPTConfig as GPTConfig
    from excise.routing.partition import partition as partition
    from excise.routing.rules import RoutingConfig as RoutingConfig
    from excise.train.run import RunConfig as RunConfig

__version__ = "0.1.0"

_HOMES = {
    "Batch": "excise.data.packing",
    "Corpus": "excise.data.packing",
    "GPT": "excise.model.gpt",
    "GPTConfig": "excise.model.gpt",
    "RoutingConfig": "excise.routing.rules",
    "RunConfig": "excise.train.run",
    "ablate": "excise.model.ablation",
    "override": "excise.config",
    "partition": "excise.routing.partition",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that the command line answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'excise' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
