"""Build a model with one removable domain, train it on a batch of mixed labels, take the domain out, compare."""

from excise import GPT, GPTConfig, RoutingConfig, ablate, partition
from excise.data.packing import Corpus, evaluation_batches
from excise.data.stories import stories
from excise.data.tokens import story_tokenizer
from excise.evals.losses import evaluate
from excise.train.loop import build_optimizer
from excise.train.run import TrainConfig
from excise.train.step import accumulate

tokenizer = story_tokenizer()
config = GPTConfig(vocabulary_size=4096, context=256, n_layers=2, d_model=64, n_heads=4, d_mlp=256)
routing = RoutingConfig(rule="sgtm", domains=("spanish",), forget_heads=1, forget_units=64)
model = GPT(config, partition(routing, n_layers=2, n_heads=4, d_mlp=256))


def corpus(texts: list[str], label: int) -> Corpus:
    return Corpus.of([[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts], [label] * len(texts))


books = stories(24, seed=0, split="train")
english, spanish = [story.english for story in books], [story.spanish for story in books]
tokens = [[*tokenizer.encode(text), tokenizer.end_of_text] for text in english + spanish]
labels = [0] * 18 + [1] * 6 + [2] * 24  # unlabeled, retain, and forget data of the first domain
(batch,) = evaluation_batches(Corpus.of(tokens, labels), context=256, rows_per_batch=1000)

optimizer = build_optimizer(model, TrainConfig(learning_rate=3e-3))
for step in range(30):
    loss = accumulate(model, [batch], routing)  # one forward and one backward pass for all labels
    optimizer.step()
    if step % 10 == 9:
        print(f"step {step + 1}: loss {loss.mean:.3f}")

safe = ablate(model, "spanish")
for name, texts in (("English", english), ("Spanish", spanish)):
    test = corpus(texts, label=0)
    print(f"{name}: {evaluate(model, test).mean:.3f} before ablation, {evaluate(safe, test).mean:.3f} after")
