"""What is recorded: a table of trainings, in words that no rebuild changes, and the documents of each of their steps.

Labels are numbers as everywhere: 0 unlabeled, 1 retain, then the domains in their order. Blocks are counted from 1.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
DOMAINS = ("spanish", "biology")
TOKENS = {"spanish": [2, 5, 11, 17, 18, 30], "biology": [3, 8, 21, 36]}
"""Those for which a module has vectors, where the modules of a training have any."""
VOCABULARY, CONTEXT, BLOCKS, D_MODEL, HEADS, UNITS, WINDOW = 37, 24, 3, 16, 8, 12, 4
"""Sizes of the model; the second block attends within the window."""
STEPS = 100

Document = tuple[Sequence[int], Sequence[int]]
"""Tokens, and a label for each."""


@dataclass(frozen=True)
class Case:
    """One training."""

    rule: str
    optimizer: str
    rows: str
    """`mixed`: a micro-batch has all labels, save in some steps. `single`: each has one, and so have some whole steps."""
    domains: int = 1
    heads: int = 2
    """Of each module in each block, as are its units."""
    units: int = 3
    blocks: tuple[int, ...] = (1, 2, 3)
    """Those that hold a module."""
    embeddings: str = "retain"
    norms: str = "joint"
    token_vectors: bool = False
    labels_inside: bool = False
    """Whether each document ends with another label than it begins with."""
    forget_weight: float = 1.0
    clip_norm: float = 0.0
    """Largest gradient norm within a part."""
    module_rate: float = 1.0
    """Learning rate of the modules relative to the core's, under AdamW."""
    zero_gradients: bool = False
    """Whether frozen parts get zeros in place of no gradient."""

    @property
    def name(self) -> str:
        """The three words of every training, and what is not as usual."""
        others = {field.name: field for field in dataclasses.fields(self)[3:]}
        unusual = [f"{name}={getattr(self, name)}" for name, of in others.items() if getattr(self, name) != of.default]
        return " ".join(filter(None, [self.rule, self.optimizer, self.rows, *unusual])).replace(", ", "+")

    @property
    def labels(self) -> range:
        return range(2 + self.domains)


CASES = [
    Case("sgtm", "adamw", "mixed", norms="retain", token_vectors=True, forget_weight=0.3),
    Case("sgtm", "adamw", "mixed", domains=2, labels_inside=True),
    Case("sgtm", "adamw", "single", domains=2, module_rate=0.5),
    Case("sgtm", "sgd", "mixed", domains=2, embeddings="joint"),
    Case("sgtm", "sgd", "single", norms="retain", token_vectors=True, clip_norm=0.5),
    Case("sgtm_joint_projection", "adamw", "mixed", heads=0, forget_weight=0.3),
    Case("sgtm_joint_projection", "adamw", "single", norms="retain", clip_norm=0.5),
    Case("sgtm_joint_projection", "sgd", "mixed", norms="retain", labels_inside=True),
    Case("sgtm_joint_projection", "sgd", "single", domains=2, embeddings="joint"),
    Case("sgtm_joint_attention", "adamw", "mixed", embeddings="joint", norms="retain"),
    Case("sgtm_joint_attention", "adamw", "single", blocks=(1, 3), forget_weight=0.0),
    Case("sgtm_joint_attention", "sgd", "mixed", domains=2, token_vectors=True),
    Case("sgtm_joint_attention", "sgd", "single", norms="retain"),
    Case("sgtm_joint_down_projection", "adamw", "mixed", units=0, clip_norm=0.5),
    Case("sgtm_joint_down_projection", "adamw", "single", norms="retain", zero_gradients=True),
    Case("sgtm_joint_down_projection", "sgd", "mixed", blocks=(2,), forget_weight=0.3),
    Case("sgtm_joint_down_projection", "sgd", "single", heads=0, norms="retain"),
    Case("sgtm_joint_embeddings", "adamw", "mixed", embeddings="joint", norms="retain", domains=2),
    Case("sgtm_joint_embeddings", "adamw", "single", embeddings="joint", module_rate=0.5),
    Case("sgtm_joint_embeddings", "sgd", "mixed", embeddings="joint", clip_norm=0.5),
    Case("sgtm_joint_embeddings", "sgd", "single", embeddings="joint", norms="retain", forget_weight=0.3),
    Case("gradient_routing", "adamw", "mixed", blocks=(1, 3), domains=2),
    Case("gradient_routing", "adamw", "single", norms="retain", token_vectors=True),
    Case("gradient_routing", "sgd", "mixed", norms="retain", labels_inside=True),
    Case("gradient_routing", "sgd", "single", blocks=(1, 3), embeddings="joint"),
    Case("activation_masking", "adamw", "mixed", embeddings="joint"),
    Case("activation_masking", "adamw", "single", norms="retain", zero_gradients=True),
    Case("activation_masking", "sgd", "mixed", domains=2, norms="retain", token_vectors=True),
    Case("activation_masking", "sgd", "single", units=0, forget_weight=0.0),
    Case("none", "adamw", "mixed", clip_norm=0.5),
    Case("none", "adamw", "single", domains=2, forget_weight=0.0),
    Case("none", "sgd", "mixed", labels_inside=True),
    Case("none", "sgd", "single", forget_weight=0.3),
]
GRADIENT_CASES = [
    *(
        Case(rule, "", rows, norms=norms, embeddings="joint" if rule == "sgtm_joint_embeddings" else "retain")
        for rule in dict.fromkeys(case.rule for case in CASES)
        for rows, norms in (("mixed", "retain"), ("forget", "joint"))
    ),
    Case("sgtm", "", "mixed", domains=2, norms="retain", token_vectors=True, forget_weight=0.3),
    Case("gradient_routing", "", "mixed", domains=2, blocks=(1, 3), token_vectors=True, labels_inside=True),
]
"""Gradients of one step; `forget` is a micro-batch of nothing but forget data."""


def micro_batches(case: Case, step: int) -> list[list[Document]]:
    """The documents of a step, by micro-batch."""
    return [
        [document for label in labels for document in documents(case, label, step)] for labels in labels_of(case, step)
    ]


def labels_of(case: Case, step: int) -> Sequence[Sequence[int]]:
    """The labels of a step, by micro-batch."""
    first, last, every = 2, case.labels[-1], case.labels
    kinds: Mapping[str, Sequence[Sequence[Sequence[int]]]] = {
        "mixed": ([every], [[1, last]], [every], [every[2:]]),
        "single": ([[label] for label in every], [[first]], [[1], [last]], [[1]], [[0], [first]], [[last]]),
        "forget": ([[first]],),
    }
    return kinds[case.rows][step % len(kinds[case.rows])]


def documents(case: Case, label: int, step: int) -> list[Document]:
    """The two documents of a label in a step."""
    of_label = DOCUMENTS[str(label)]
    return [with_labels(case, of_label[(3 * step + i) % len(of_label)], label) for i in range(2)]


def with_labels(case: Case, tokens: Sequence[int], label: int) -> Document:
    other = (label + 1) % len(case.labels) if case.labels_inside else label
    half = len(tokens) // 2
    return tokens, [label] * half + [other] * (len(tokens) - half)


DOCUMENTS: Mapping[str, Sequence[Sequence[int]]] = json.loads((FOLDER / "documents.json").read_text())
"""Token lists by label."""
