"""Real text, where it is at hand: token counts to the token, and hardly any padding. `make stress` runs all of it."""

import gzip
import json
import os
from pathlib import Path

import pytest

from excise.data.documents import Fields
from excise.data.packing import empty_shares
from excise.data.prepare import PrepareConfig, prepare
from excise.data.shards import load_prepared, read_manifest
from excise.data.sources import SourceConfig
from excise.data.tokens import VERIFIED, Tokenizer

SHARED = Path(os.environ.get("EXCISE_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here; set EXCISE_SHARED_DATA")
CATEGORY = {"bilingual_fiction": "lang", "topics_schools_wikipedia": "category"}


def prepared(name: str, out: Path, **options):
    config = PrepareConfig(
        source=SourceConfig(fields=Fields(category=CATEGORY.get(name, "lang"))),
        tokenizer=str(SHARED / "tokenizer_gpt2" / "tokenizer.json"),
        **options,
    )
    return prepare(str(SHARED / name), out, config, processes=2)


@pytest.mark.stress
@pytest.mark.parametrize("name", CATEGORY)
def test_token_counts_are_exact_and_packing_leaves_little_empty(name, tmp_path):
    manifest = prepared(name, tmp_path / "data")
    stats = json.loads((SHARED / name / "stats.json").read_text())
    for split in ("train", "test"):
        expected = [value for key, value in stats.items() if key.endswith(split)]
        shards = [shard for shard in manifest.shards if shard.split == split]
        assert sum(shard.n_documents for shard in shards) == sum(entry["docs"] for entry in expected)
        assert sum(shard.n_tokens for shard in shards) == sum(entry["tokens"] for entry in expected)
    lengths = load_prepared(tmp_path / "data").splits["train"].lengths
    for context in (512, 1024):
        assert empty_shares(lengths, context)[0] < 0.02


@pytest.mark.stress
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_one_process_and_an_engine_write_the_same_bytes(engine, tmp_path):
    pytest.importorskip("ray" if engine == "ray" else "excise")
    name = "topics_schools_wikipedia"
    prepared(name, tmp_path / "two")
    config = PrepareConfig(tokenizer=str(SHARED / "tokenizer_gpt2" / "tokenizer.json"))
    prepare(str(SHARED / name), tmp_path / "other", config, processes=1, engine=engine)
    assert read_manifest(tmp_path / "two") == read_manifest(tmp_path / "other")


def test_gpt2_is_verified_on_real_text():
    tokenizer = Tokenizer.load(SHARED / "tokenizer_gpt2" / "tokenizer.json")
    assert tokenizer.sha256 == VERIFIED["gpt2"]
    for file in (SHARED / "mini").glob("*.test.jsonl.gz"):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for text in (json.loads(line)["text"][:5000] for line in lines):
                assert tokenizer.encode(text) == tokenizer.encode_with_offsets(text)[0]


def test_the_small_cuts_are_read_whole(tmp_path):
    files = {"bilingual": 1200, "topics": 600}
    for name, n in files.items():
        source = tmp_path / name
        source.mkdir()
        for file in (SHARED / "mini").glob(f"{name}*"):
            (source / file.name).symlink_to(file)
        field = "lang" if name == "bilingual" else "category"
        config = PrepareConfig(source=SourceConfig(fields=Fields(category=field)))
        manifest = prepare(str(source), tmp_path / f"{name}-out", config)
        assert (sum(shard.n_documents for shard in manifest.shards), manifest.n_bad_rows) == (n, 0)
