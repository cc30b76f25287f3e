"""How recorded passes add up gradients, with recordings that a CPU plays; tests/gpu has those of a GPU."""

import pytest
import torch

from excise.train.recorded import RecordedPasses, Recording
from excise.train.step import Passes, accumulate, accumulate_passes
from tests.small import batch_of, random_documents, routing_for, small_model


class Graph:
    """A pass that is done anew over what is in its batch, and leaves its gradients where they were the first time."""

    def __init__(self, passes, batch, share):
        self.passes, self.batch, self.share, self.totals = passes, batch, share, torch.zeros(3)
        self.gradients = {p: g.clone() for p, g in self.run().items()}

    def run(self):
        parameters = list(self.passes.model.parameters())
        before = [p.grad for p in parameters]
        self.passes.model.zero_grad()
        self.totals.copy_(Passes.__call__(self.passes, self.batch, self.share))
        found = {p: p.grad for p in parameters if p.grad is not None}
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient
        return found

    def replay(self):
        for parameter, gradient in self.run().items():
            self.gradients[parameter].copy_(gradient)


class PlayedPasses(RecordedPasses):
    def _add(self, kind, batch):
        graph = Graph(self, batch.copied(), torch.ones(()))
        self.recordings[kind] = Recording(graph, graph.batch, graph.share, graph.totals, graph.gradients)


def batch_with(labels, n=8):
    documents = random_documents(8, longest=20)[:n]
    return batch_of(documents, [[labels[i % len(labels)]] * len(d) for i, d in enumerate(documents)])


STEPS = {
    "one pass": [([0, 1, 2],)],
    "one kind again": [([2], [2], [2])],
    "kinds in turn": [([1], [2], [1])],
    "another shape first": [(([2], 3), [1])],
    "another shape in between": [([2], ([2], 3), [2])],
    "step after step": [([0, 1, 2],), ([2], [1]), ([1],), ([0, 1, 2], [2], [0, 1, 2])],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_recorded_passes_leave_the_gradients_of_plain_ones(steps):
    """Bit for bit, and none where there is none, though a recording overwrites its gradients whenever it is played."""
    routing = routing_for("sgtm")
    plain, model = small_model(routing), small_model(routing)
    passes = PlayedPasses(Passes(model, routing, None), tuple(batch_with([0]).tokens.shape))
    for step in steps:
        batches = [batch_with(*given) if isinstance(given, tuple) else batch_with(given) for given in step]
        expected, found = accumulate(plain, batches, routing), accumulate_passes(passes, batches)
        assert found.total == expected.total
        for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            assert p.grad is None or torch.equal(p.grad, q.grad), name


def test_the_gradients_of_one_pass_are_neither_copied_nor_added_to_anything():
    routing = routing_for("sgtm")
    model, batch = small_model(routing), batch_with([0, 1, 2])
    passes = PlayedPasses(Passes(model, routing, None), tuple(batch.tokens.shape))
    for _ in range(2):
        accumulate_passes(passes, [batch])
        ((_, recording),) = passes.recordings.items()
        assert all(p.grad is recording.gradients[p] for p in model.parameters())
    assert not passes.sums
