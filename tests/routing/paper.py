"""The paper's methods written out by hand, from its appendices A and F and section 1 of the design.

Nothing here asks the package, and of a config only what its user wrote is read. What a module's heads and units have in
W_QKV, W_O, W_1, b_1 and W_2 is in `forget/<domain>` under every rule; `CORE` says where the rest is.
"""

from typing import NamedTuple

from excise.model.gpt import GPTConfig
from excise.routing.rules import RoutingConfig

CORE = """
                             W_QKV   W_O     b_O     W_1     b_1     W_2     b_2     module
sgtm                         retain  retain  retain  retain  retain  retain  retain  heads+units
sgtm_joint_projection        retain  joint   joint   retain  retain  joint   joint   heads+units
sgtm_joint_attention         joint   joint   joint   retain  retain  joint   joint   units
sgtm_joint_down_projection   retain  retain  retain  retain  retain  joint   joint   heads+units
sgtm_joint_embeddings        retain  retain  retain  retain  retain  joint   joint   heads+units
gradient_routing             retain  joint   joint   retain  retain  joint   joint   heads+units
gradient_routing/elsewhere   joint   joint   joint   joint   joint   joint   joint   -
activation_masking           retain  joint   joint   retain  retain  joint   joint   heads+units
none                         joint   joint   joint   joint   joint   joint   joint   -
"""
"""By rule; blocks that hold no module are like the others, save where there is a line for them."""

EFFECTS = """
                             unlabeled  retain        forget
sgtm                         -          hide=modules  hide=others,freeze=retain
sgtm_joint_projection        -          hide=modules  hide=others,freeze=retain
sgtm_joint_attention         -          hide=modules  hide=others,freeze=retain
sgtm_joint_down_projection   -          hide=modules  hide=others,freeze=retain
sgtm_joint_embeddings        -          hide=modules  hide=others,freeze=retain
gradient_routing             -          hide=modules  hide=others,freeze=retain,detach=retain
activation_masking           -          hide=modules  hide=others,freeze=retain,hide=retain
none                         -          -             -
"""
"""By rule and label; `others` are the modules of all domains but the document's own."""

FIRST_DOMAIN = 2  # after unlabeled and retain
NAMES = {
    "W_QKV": "attention.qkv.weight",
    "W_O": "attention.out.weight",
    "b_O": "attention.out.bias",
    "W_1": "mlp.up.weight",
    "b_1": "mlp.up.bias",
    "W_2": "mlp.down.weight",
    "b_2": "mlp.down.bias",
}


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """The cells of a table by row and column."""
    header, *lines = table.strip().splitlines()
    return {row: dict(zip(header.split(), cells, strict=True)) for row, *cells in map(str.split, lines)}


def core_of(routing: RoutingConfig, block: int) -> dict[str, str]:
    """The line of `CORE` for one block."""
    rows = rows_of(CORE)
    held = routing.layers == "all" or block in routing.layers
    return rows[routing.rule] if held else {**rows.get(f"{routing.rule}/elsewhere", rows[routing.rule]), "module": "-"}


def pieces_of(routing: RoutingConfig, kind: str, held: bool, total: int) -> dict[str, int]:
    """How many heads or units of a block each module has, and how many are left to the core."""
    each = {"heads": routing.forget_heads, "units": routing.forget_units}[kind] if held else 0
    modules = {f"forget/{domain}": each for domain in routing.domains if each}
    return {**modules, "core": total - sum(modules.values())}


def parameters_of(routing: RoutingConfig, config: GPTConfig, own: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """The name, which ends in the part, and the shape of every parameter of a model with vectors of its own for tokens of some
    domains."""
    V, D, K = config.vocabulary_size, config.d_model, config.d_model // config.n_heads
    plain = routing.rule == "none"
    embeddings, norms = ("joint", "joint") if plain else (routing.embeddings, routing.norms)
    layers = ["norm", *(f"blocks.{block}.norm_{i}" for block in range(config.n_layers) for i in (1, 2))]
    found = {
        f"tokens.weight.{embeddings}": (V, D),
        **{f"tokens.weight.forget/{domain}": (len(tokens), D) for domain, tokens in own.items()},
        f"positions.weight.{embeddings}": (config.context, D),
        f"output_bias.{embeddings}": (V,),
        **{f"{layer}.{kind}.{norms}": (D,) for layer in layers for kind in ("weight", "bias")},
    }
    for block in range(config.n_layers):
        core = core_of(routing, block)
        shapes = {("b_O", "core"): (D,), ("b_2", "core"): (D,)}
        for owner, n in pieces_of(routing, "heads", "heads" in core["module"], config.n_heads).items():
            shapes |= {("W_QKV", owner): (3 * K * n, D), ("W_O", owner): (D, K * n)}
        for owner, n in pieces_of(routing, "units", "units" in core["module"], config.d_mlp).items():
            shapes |= {("W_1", owner): (n, D), ("b_1", owner): (n,), ("W_2", owner): (D, n)}
        for (matrix, owner), shape in shapes.items():
            found[f"blocks.{block}.{NAMES[matrix]}.{core[matrix] if owner == 'core' else owner}"] = shape
    return found


class Effect(NamedTuple):
    """Parts of a model that a document hides, detaches and freezes."""

    hide: set[str]
    detach: set[str]
    freeze: set[str]


def effect_of(routing: RoutingConfig, label: int) -> Effect:
    """What a document does whose label has this number."""
    modules = {f"forget/{domain}" for domain in routing.domains}
    own = {f"forget/{routing.domains[label - FIRST_DOMAIN]}"} if label >= FIRST_DOMAIN else set()
    named = {"retain": {"retain"}, "modules": modules, "others": modules - own}
    cell = rows_of(EFFECTS)[routing.rule][("unlabeled", "retain", "forget")[min(label, FIRST_DOMAIN)]]
    effect = Effect(set(), set(), set())
    for entry in () if cell == "-" else cell.split(","):
        verb, parts = entry.split("=")
        getattr(effect, verb).update(named[parts])
    return effect
