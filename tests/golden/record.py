"""Record the trainings and gradients of `tests.golden.cases` that are not recorded yet.

    python -m tests.golden.record

They say what the code computed when they were made, so that a rebuild (of the layout, the core, parallelism, kernels) can
show that it changed nothing. A rebuild therefore never makes them anew: where it fails them it is wrong, and the one file
that it may rewrite, imports aside, is adapter.py. What is new, such as a rule, gets cases of its own beside those that are there. Only a
change that means to train otherwise deletes losses.json and gradients.safetensors and makes all of them anew, in a commit
of its own, and says so in the changelog.

The initial weights and the documents, weights.safetensors and documents.json, are inputs: nothing writes them again.
The recordings of the demo are made by `tests.golden.demo`.
"""

import json

import torch
from safetensors.torch import load_file, save_file

from excise.files import write_whole
from tests.golden.cases import CASES, GRADIENT_CASES
from tests.golden.recordings import GRADIENTS, LOSSES, gradients_of, losses_of, recorded_losses


def main() -> None:
    torch.set_num_threads(1)
    losses = recorded_losses() if LOSSES.exists() else {}
    losses = {case.name: losses.get(case.name) or losses_of(case) for case in CASES}
    lines = (f" {json.dumps(name)}: {json.dumps(of_case)}" for name, of_case in losses.items())
    write_whole(LOSSES, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    gradients = load_file(GRADIENTS) if GRADIENTS.exists() else {}
    for case in GRADIENT_CASES:
        if not any(name.startswith(f"{case.name}: ") for name in gradients):
            gradients |= {f"{case.name}: {name}": of_tensor for name, of_tensor in gradients_of(case).items()}
    save_file(gradients, GRADIENTS)


if __name__ == "__main__":
    main()
