"""The method and the set-up of the paper: the split (figure 2), what updates what (table 1), and tables 2 to 5."""

from collections.abc import Mapping

from excise.data.wikipedia import TAXONOMY
from excise.evals.figure import Estimate, PaperClaim, Scale, Split, Table
from excise.labels import RETAIN, UNLABELED, forget_part, part_of
from excise.model.gpt import GPT
from excise.recipes.figures.bilingual_runs import DOMAIN, parameters_of, setup, sgtm, standard
from excise.recipes.figures.planned import Drawing, Figure, Group, PlannedRun, Sources
from excise.recipes.figures.topics_runs import RMU
from excise.recipes.figures.topics_runs import setup as topics_setup
from excise.recipes.paper import TINYSTORIES, WIKIPEDIA, tinystories, wikipedia
from excise.train.run import RunConfig, build_model

# --- Figure 2: the split ---------------------------------------------------------------------------------------------

MATRICES = {
    "E": ("tokens.weight", 0, "tokens"),
    "P": ("positions.weight", 0, "positions"),
    "norm_1": ("blocks.0.norm_1", None, "vectors"),
    "W_QKV": ("blocks.0.attention.qkv.weight", 0, "heads"),
    "W_O": ("blocks.0.attention.out.weight", 1, "heads"),
    "b_O": ("blocks.0.attention.out.bias", None, "vector"),
    "norm_2": ("blocks.0.norm_2", None, "vectors"),
    "W_1": ("blocks.0.mlp.up.weight", 0, "units"),
    "b_1": ("blocks.0.mlp.up.bias", 0, "units"),
    "W_2": ("blocks.0.mlp.down.weight", 1, "units"),
    "b_2": ("blocks.0.mlp.down.bias", None, "vector"),
    "norm": ("norm", None, "vectors"),
    "b": ("output_bias", 0, "tokens"),
}
"""In the order of the data's way: the parameter, the axis along which it is split, and what is counted there; without an
axis, the parameters of that name."""


def split_of(model: GPT) -> Split:
    """How the parameters of a model's first block, and those before and after all blocks, are split."""
    parts = dict.fromkeys(part_of(name) for name, _ in model.named_parameters())
    sizes = {matrix: [_size(model, matrix, part) for part in parts] for matrix in MATRICES}
    found = [matrix for matrix in MATRICES if any(sizes[matrix])]
    title = f"A block of {model.config.n_heads} heads and {model.config.d_mlp} units, and what is around all blocks"
    of_parts = {part: [sizes[matrix][i] for matrix in found] for i, part in enumerate(parts)}
    return Split(title, found, of_parts, [MATRICES[matrix][2] for matrix in found])


def _size(model: GPT, matrix: str, part: str) -> int:
    """How much of a matrix is in a part, in what is counted there."""
    name, axis, _ = MATRICES[matrix]
    mine = [p for of, p in model.named_parameters() if of.startswith(f"{name}.") and part_of(of) == part]
    if axis is None:
        return len(mine)
    per_head = {"W_QKV": 3 * model.config.head_size, "W_O": model.config.head_size}
    return sum(parameter.shape[axis] for parameter in mine) // per_head.get(matrix, 1)


def draw_split(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    return Drawing([split_of(build_model(setup(scale, Sources())))])


FIGURE_2 = Figure(
    name="figure-2",
    title="Which parameters are in which part",
    section="3.1",
    caption="Counted from the parameters of an SGTM model: embeddings E and P, layer norms (gain and bias), attention and MLP "
    "of a block, and the output bias b. What is joint, all data update: norms (appendix F) and, where languages share a model, "
    "embeddings (section 4.1).",
    draw=draw_split,
)

# --- Table 1: what updates what --------------------------------------------------------------------------------------

INTERVENTIONS = {
    DOMAIN: ("D_forget", "", "retain gradients masked"),
    UNLABELED: ("D_unlabeled", "", ""),
    RETAIN: ("D_retain", "forget parameters masked", ""),
}
UPDATES = {DOMAIN: (True, False), UNLABELED: (True, True), RETAIN: (False, True)}
"""By label, whether theta_forget and theta_retain are updated (the paper's table)."""


def update_runs(scale: Scale, sources: Sources) -> dict[str, PlannedRun]:
    base = setup(scale, sources)
    planned = PlannedRun(config=sgtm(base, 0.0), measures=("losses", "updates"))
    return {"sgtm": planned, "no_filter": PlannedRun(config=standard(base, 1.0, scale))}


def draw_updates(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    norms = runs["sgtm"][0].results.measures["updates"]["relative_gradient_norm"]
    parts = (forget_part(DOMAIN), RETAIN)
    others = [part for part in norms[UNLABELED] if part not in parts]
    header = ("data", "forward pass", "backward pass", "forget parameters", "retain parameters", *others)
    rows = [
        [*words, *(_mark(norms[label][part]) for part in (*parts, *others))] for label, words in INTERVENTIONS.items()
    ]
    claims = [
        _update_claim(INTERVENTIONS[label][0], name, norms[label][part], expected)
        for label, of_label in UPDATES.items()
        for name, part, expected in zip(("forget", "retain"), parts, of_label, strict=True)
    ]
    return Drawing([Table("Which data updates which parameters", header, rows)], claims)


def _mark(norm: float) -> str:
    return f"✓ {norm:.2g}" if norm else "✗ 0"


def _update_claim(data: str, part: str, norm: float, expected: bool) -> PaperClaim:
    text = f"{data} {'updates' if expected else 'leaves'} the {part} parameters{'' if expected else ' alone'}"
    paper = f"{'updated' if expected else 'not updated'} (table 1)"
    why = "relative gradient norm of a step on documents with this label alone"
    return PaperClaim(text, paper, Estimate(norm), "|gradient| / |parameters|", (norm > 0) == expected, why, check=True)


TABLE_1 = Figure(
    name="table-1",
    title="Which data updates which parameters",
    section="3.2",
    caption="Measured from the gradients of a trained SGTM model on training documents of each label; the numbers are "
    "relative gradient norms.",
    runs=update_runs,
    draw=draw_updates,
)

# --- Tables 2 to 4: hyperparameters ----------------------------------------------------------------------------------

PAPER_PARAMETERS = {
    "table-2": {"64m": 63_855, "34m": 33_732, "18m": 17_781, "8m": 7_736},
    "table-3": {"254m": 254_054, "125m": 124_462, "64m": 64_117, "34m": 33_929},
}
"""In thousands."""
PAPER_RMU: Mapping[str, str | float] = {
    "Steps": 250,
    "alpha": 100,
    "Steering coefficient": 20,
    "Batch size": 4,
    "Blocks of the model": 16,
    "Layer to unlearn": 7,
    "Update layers": "5, 6, 7",
    "Update parameters": "MLP weights and biases (W_1, b_1, W_2, b_2)",
    "Learning rate": "not told",
}


def hyperparameters(runs: Mapping[str, RunConfig]) -> Table:
    """The options of some runs, as the paper's tables list them."""
    values: dict[str, list[str | float]] = {
        "Parameters": [f"{parameters_of(run.model) / 1000:,.0f}k" for run in runs.values()],
        "Layers": [run.model.n_layers for run in runs.values()],
        "Model dimension d": [run.model.d_model for run in runs.values()],
        "MLP dimension": [run.model.d_mlp for run in runs.values()],
        "Attention heads h": [run.model.n_heads for run in runs.values()],
        "Vocabulary size": [run.model.vocabulary_size for run in runs.values()],
        "Context size": [run.batch.context for run in runs.values()],
        "Batch size": [run.batch.rows_per_step for run in runs.values()],
        "Warmup steps": [run.train.warmup_steps for run in runs.values()],
        "Budget": [f"{run.train.budget.amount:.4g} {run.train.budget.unit}" for run in runs.values()],
        "Learning rate": [run.train.learning_rate for run in runs.values()],
        "LR schedule": ["cosine with warmup"] * len(runs),
        "Optimizer": ["AdamW"] * len(runs),
        "Weight decay": [run.train.weight_decay for run in runs.values()],
        "beta 1": [run.train.beta_1 for run in runs.values()],
        "beta 2": [run.train.beta_2 for run in runs.values()],
        "Embeddings": [f"tied, {run.routing.embeddings}" for run in runs.values()],
        "Heads, units of the module": [
            f"{run.routing.forget_heads}, {run.routing.forget_units}" for run in runs.values()
        ],
    }
    rows: list[list[str | float]] = [[name, *of_runs] for name, of_runs in values.items()]
    return Table("Hyperparameters", ("", *(name.upper() for name in runs)), rows)


def count_claims(name: str, runs: Mapping[str, RunConfig]) -> list[PaperClaim]:
    expected = PAPER_PARAMETERS[name]
    return [
        PaperClaim(
            f"The {size.upper()} model has as many parameters as the paper's",
            f"{expected[size]:,}k",
            Estimate(parameters_of(run.model) / 1000),
            "thousand parameters",
            abs(parameters_of(run.model) / 1000 - expected[size]) < 1,
            "counted from the recipe; holds where they differ by less than a thousand",
            check=True,
        )
        for size, run in runs.items()
    ]


def draw_tinystories(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    recipes = {size: tinystories(size) for size in reversed(TINYSTORIES)}
    return Drawing([hyperparameters(recipes)], count_claims("table-2", recipes))


def draw_wikipedia(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    recipes = {size: wikipedia(size) for size in reversed(WIKIPEDIA)}
    return Drawing([hyperparameters(recipes)], count_claims("table-3", recipes))


def draw_rmu(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    unlearning, n_layers = RMU[scale], topics_setup(scale, Sources()).model.n_layers
    rmu = unlearning.rmu.scaled(n_layers)
    ours: dict[str, str | float] = {
        "Steps": unlearning.steps,
        "alpha": rmu.alpha,
        "Steering coefficient": rmu.steering_coefficient,
        "Batch size": unlearning.batch_size,
        "Blocks of the model": n_layers,
        "Layer to unlearn": rmu.layer,
        "Update layers": ", ".join(map(str, rmu.update_layers)),
        "Update parameters": "MLP weights and biases (W_1, b_1, W_2, b_2)",
        "Learning rate": unlearning.learning_rate,
    }
    rows = [(name, value, "" if value == PAPER_RMU[name] else PAPER_RMU[name]) for name, value in ours.items()]
    return Drawing([Table("RMU", ("hyperparameter", "value", "the paper's, where another"), rows)])


def draw_taxonomy(runs: Mapping[str, Group], scale: Scale) -> Drawing:
    rows = [
        [
            topic.path[0],
            " > ".join(topic.path[1:]) + ("*" if topic.starred else ""),
            topic.name,
            "" if topic.in_appendix else "no",
        ]
        for topic in TAXONOMY
    ]
    n = len(TAXONOMY)
    text, paper = "The taxonomy has 64 topics", "64 (section 5.1)"
    claim = PaperClaim(text, paper, Estimate(n), "topics", n == 64, "counted", check=True)
    header = ("area", "topic", "name in Wikimedia's tables", "in the paper's table")
    return Drawing([Table("articletopic taxonomy", header, rows)], [claim])


TABLE_2 = Figure(
    name="table-2",
    title="Hyperparameters of the bilingual runs",
    section="appendix I",
    caption="Printed from the recipes of the paper's runs. Its steps are told as a share of the epoch at 64M.",
    draw=draw_tinystories,
)
TABLE_3 = Figure(
    name="table-3",
    title="Hyperparameters of the Wikipedia runs",
    section="appendix J",
    caption="Printed from the recipes of the paper's runs.",
    draw=draw_wikipedia,
)
TABLE_4 = Figure(
    name="table-4",
    title="Hyperparameters of RMU",
    section="appendix J",
    caption="Printed from what figure 6a does at this scale. Layers count from 0; in a model of another depth than the paper's "
    "they scale with it.",
    draw=draw_rmu,
)
TABLE_5 = Figure(
    name="table-5",
    title="Taxonomy of Wikipedia topics",
    section="appendix K",
    caption="Topics of the content classifier; an asterisk marks an umbrella topic.",
    draw=draw_taxonomy,
)

FIGURES = (FIGURE_2, TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5)
