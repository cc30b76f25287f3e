"""How far an evaluation is: as many predictions as it said that it takes, and nothing where nobody looks."""

import pytest

from excise.data.dataset import load_data
from excise.evals.progress import shown_by
from excise.evals.run import losses, open_run
from excise.evals.tradeoff import Tradeoff
from excise.train.checkpoint import Done
from excise.train.loop import Progress
from excise.train.run import build_model
from tests.evals.runs import PLAIN, tiny_run, train_run


@pytest.mark.parametrize("changes", [{}, PLAIN])
def test_an_evaluation_in_training_tells_of_every_prediction_and_of_no_more(changes):
    run = tiny_run(**changes, **{"train.evaluations": 1})
    data, seen = load_data(run.data, run.routing.domains), []
    progress = Progress(build_model(run), Done(4, 1, 1.0), 4, 1.0, {})
    with shown_by(seen.append):
        for _ in range(2):
            Tradeoff(run, data)(progress)
    ends = [how_far for how_far in seen if how_far.done == how_far.total]
    assert len(ends) == 2
    assert ends[-1] is seen[-1]
    assert [how_far.done for how_far in seen] == 2 * sorted({how_far.done for how_far in seen})
    assert {how_far.total for how_far in seen} == {ends[0].total}
    Tradeoff(run, data)(progress)
    assert seen[-1] is ends[-1], "where nobody looks nothing is told"


def test_the_evaluation_of_a_run_tells_how_far_it_is(tmp_path):
    subject, seen = open_run(train_run(tmp_path / "run")), []
    with shown_by(seen.append):
        losses(subject)
    assert seen[-1].done == seen[-1].total > 0
    assert str(seen[-1]) == f"{seen[-1].total:,} of {seen[-1].total:,} tokens, 0 s left"
