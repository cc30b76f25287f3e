"""SGTM and its rivals as tables: what a document of each label does to the parts of a model (paper, table 1, appendix A).

A rule has two halves. Its *effects* say, per kind of label, which parts are hidden, detached or frozen. Its *joint*
set says which core parameters forget data may update as well; the joint variants of SGTM differ from it in nothing else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from excise.labels import JOINT, RETAIN, UNLABELED, check_domains, forget_part, nearest

FORGET = "forget"

# Selectors: parts as a rule names them, before the domains of a model are known.
CORE = frozenset({"core"})  # theta_retain
MODULES = frozenset({"own", "others"})  # theta_forget of every domain
OTHER_MODULES = frozenset({"others"})  # of every domain but the document's own
NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Effect:
    """What a document does to the model; each field names parts of its parameters."""

    hide: frozenset[str] = NOTHING
    """Their heads and units do not exist for this document."""
    detach: frozenset[str] = NOTHING
    """No gradient flows back through the outputs of their heads and units."""
    freeze: frozenset[str] = NOTHING
    """They get no gradient from this document."""

    def on(self, own: str | None, domains: Sequence[str]) -> "Effect":
        """The same effect with its selectors replaced by the parts of a model with these domains."""
        others = {forget_part(domain) for domain in domains if domain != own}
        parts = {"core": {RETAIN}, "own": {forget_part(own)} if own else set(), "others": others}

        def select(selectors: frozenset[str]) -> frozenset[str]:
            return frozenset().union(*(parts[selector] for selector in selectors))

        return Effect(select(self.hide), select(self.detach), select(self.freeze))

    @property
    def still(self) -> frozenset[str]:
        """Parts that this document cannot update: a hidden unit has no output, so no gradient reaches it."""
        return self.hide | self.freeze


SGTM_EFFECTS: Mapping[str, Effect] = {
    FORGET: Effect(freeze=CORE, hide=OTHER_MODULES),
    RETAIN: Effect(hide=MODULES),
    UNLABELED: Effect(),
}
# Both rivals leave theta_retain alone as well. Detaching or hiding its heads and units does that for them already;
# freezing extends it to embeddings and norms, where a run puts those in theta_retain.
GRADIENT_ROUTING_EFFECTS = {**SGTM_EFFECTS, FORGET: Effect(detach=CORE, freeze=CORE, hide=OTHER_MODULES)}
ACTIVATION_MASKING_EFFECTS = {**SGTM_EFFECTS, FORGET: Effect(hide=CORE | OTHER_MODULES, freeze=CORE)}
NO_EFFECTS: Mapping[str, Effect] = {FORGET: Effect(), RETAIN: Effect(), UNLABELED: Effect()}

ATTENTION_IN = "attention_in"  # W_Q, W_K, W_V
ATTENTION_OUT = "attention_out"  # W_O, b_O
MLP_IN = "mlp_in"  # W_1, b_1
MLP_OUT = "mlp_out"  # W_2, b_2
BLOCK = frozenset({ATTENTION_IN, ATTENTION_OUT, MLP_IN, MLP_OUT})


@dataclass(frozen=True)
class Rule:
    """One method: the effects of its labels, and the core parameters that are joint."""

    effects: Mapping[str, Effect]
    joint: frozenset[str] = NOTHING
    joint_embeddings: bool = False
    """Whether the variant is about joint embeddings, so that a run may not put them in theta_retain."""
    module_heads: bool = True
    """Whether a module has attention heads, beside MLP units."""
    other_layers: str = RETAIN
    """The part of blocks that hold no module."""
    has_modules: bool = True


RULES: Mapping[str, Rule] = {
    "sgtm": Rule(SGTM_EFFECTS),
    "sgtm_joint_projection": Rule(SGTM_EFFECTS, joint=frozenset({ATTENTION_OUT, MLP_OUT})),
    "sgtm_joint_attention": Rule(
        SGTM_EFFECTS, joint=frozenset({ATTENTION_IN, ATTENTION_OUT, MLP_OUT}), module_heads=False
    ),
    "sgtm_joint_down_projection": Rule(SGTM_EFFECTS, joint=frozenset({MLP_OUT})),
    "sgtm_joint_embeddings": Rule(SGTM_EFFECTS, joint=frozenset({MLP_OUT}), joint_embeddings=True),
    "gradient_routing": Rule(GRADIENT_ROUTING_EFFECTS, joint=frozenset({ATTENTION_OUT, MLP_OUT}), other_layers=JOINT),
    "activation_masking": Rule(ACTIVATION_MASKING_EFFECTS, joint=frozenset({ATTENTION_OUT, MLP_OUT})),
    "none": Rule(NO_EFFECTS, joint=BLOCK, other_layers=JOINT, has_modules=False),
}

RuleName = Literal[
    "sgtm",
    "sgtm_joint_projection",
    "sgtm_joint_attention",
    "sgtm_joint_down_projection",
    "sgtm_joint_embeddings",
    "gradient_routing",
    "activation_masking",
    "none",
]
"""The keys of `RULES`, spelt out for type checkers and for `--help`."""


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """Which knowledge goes where, and how."""

    rule: RuleName = "sgtm"
    """The method: SGTM, a variant of it, a rival, or none of them."""
    domains: tuple[str, ...] = ("forget",)
    """Bodies of knowledge that must be removable, one module each."""
    forget_heads: int = 1
    """Attention heads per block set aside for each domain (h_forget)."""
    forget_units: int = 64
    """MLP units per block set aside for each domain (d_forget)."""
    forget_tokens: float = 0.0
    """Tokens for which each domain's module has vectors of its own, added to the core's: those whose frequency in its
    documents is at least this share, 0.5 or more, of the sum of their frequencies there, in retain documents and in those
    of other domains; 0 is none."""
    layers: tuple[int, ...] | Literal["all"] = "all"
    """Blocks that hold a module."""
    embeddings: Literal["joint", "retain"] = "retain"
    """Part of the token and position embeddings and of the bias on the logits."""
    norms: Literal["joint", "retain"] = "joint"
    """Part of the layer norms."""
    forget_weight: float = 1.0
    """Weight of forget tokens in the loss; the divisor stays the number of all predicted tokens."""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"unknown rule {self.rule!r}; {nearest(self.rule, RULES)}")
        check_domains(self.domains)
        if not self.domains:
            raise ValueError("routing.domains is empty; name at least one body of knowledge, such as 'spanish'")
        if self.forget_heads < 0 or self.forget_units < 0:
            raise ValueError("routing.forget_heads and routing.forget_units cannot be negative")
        if RULES[self.rule].has_modules and not self.module_heads and not self.forget_units:
            raise ValueError(
                f"rule {self.rule!r} with forget_heads={self.forget_heads} and forget_units=0 leaves the modules empty; "
                "set routing.forget_units to at least 1"
            )
        if RULES[self.rule].joint_embeddings and self.embeddings != JOINT:
            raise ValueError(f"rule {self.rule!r} has joint embeddings; set routing.embeddings to 'joint'")
        if self.forget_tokens and not 0.5 <= self.forget_tokens < 1:
            raise ValueError(f"routing.forget_tokens={self.forget_tokens:g} must be 0, or from 0.5 to below 1")
        if not 0 <= self.forget_weight < math.inf:
            raise ValueError(f"routing.forget_weight={self.forget_weight} must be a number from 0 up")

    @property
    def module_heads(self) -> int:
        """Attention heads per module and block under this rule."""
        return self.forget_heads if RULES[self.rule].module_heads else 0

    @property
    def modules(self) -> tuple[str, ...]:
        """Domains that have a module of their own under this rule."""
        return self.domains if RULES[self.rule].has_modules else ()

    @property
    def effects(self) -> tuple[Effect, ...]:
        """What a document does to this model, by the number of its label."""
        effects = RULES[self.rule].effects
        return (
            effects[UNLABELED].on(None, self.modules),
            effects[RETAIN].on(None, self.modules),
            *(effects[FORGET].on(domain, self.modules) for domain in self.domains),
        )
