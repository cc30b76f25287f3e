"""Make the recordings of trainings and gradients anew.

    python -m tests.golden.record

They say what the code computed when they were made, so that a rebuild (of the layout, the core, parallelism, kernels) can
show that it changed nothing. A rebuild therefore never makes them anew: where it fails them it is wrong, and the one file
that it may rewrite is adapter.py. They are made anew only by a change that means to train otherwise, which says so in the
changelog, in a commit of its own; what is merely added gets a case of its own, beside those that are there, which stay.

The initial weights and the documents, weights.safetensors and documents.json, are inputs: nothing writes them again.
The recordings of the demo are made by `tests.golden.demo`.
"""

import json

import torch
from safetensors.torch import save_file

from excise.files import write_whole
from tests.golden.cases import CASES, GRADIENT_CASES
from tests.golden.recordings import GRADIENTS, LOSSES, gradients_of, losses_of


def main() -> None:
    torch.set_num_threads(1)
    lines = (f" {json.dumps(case.name)}: {json.dumps(losses_of(case))}" for case in CASES)
    write_whole(LOSSES, ("{\n" + ",\n".join(lines) + "\n}\n").encode())
    gradients = {case.name: gradients_of(case) for case in GRADIENT_CASES}
    save_file({f"{case}: {name}": of for case, tensors in gradients.items() for name, of in tensors.items()}, GRADIENTS)


if __name__ == "__main__":
    main()
