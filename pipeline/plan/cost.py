"""The cost of a stage: operations and bytes from a model's size, seconds from a rate.

A token costs two operations a parameter, and as much a block as its share of the parameters; what
attention adds for the length of a text is a few percent at the lengths here, and is left out.

The rate is the one that earlier stages of this study reached, as their sidecars in data/STUDY/cost/
record it; without a record, the constants of `pipeline.workflow.shards`, which are right within a
factor of some three. The plan, the scheduler and the cuts of shards use this one model.

Shapes: L blocks, N samples, P prefix and S suffix tokens.
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

from huggingface_hub import try_to_load_from_cache
from pyarrow import parquet

from pipeline.checkpoints.manifest import BYTES, read_manifest
from pipeline.checkpoints.schema import Continued, Folder, Hub, Model, Training
from pipeline.interventions.interventions import Intervention, sweep
from pipeline.interventions.trie import build_trie
from pipeline.samples.schema import Family, File, Pile, Pythia, Records
from pipeline.study.loops import IN_PARTS
from pipeline.study.schema import Study, given
from pipeline.workflow.errors import InputError
from pipeline.workflow.files import bytes_of
from pipeline.workflow.shards import operations_a_second

LADDER = (
    *((0.07, 6, 8), (0.16, 12, 12), (0.41, 24, 16), (1.4, 24, 16)),
    *((2.8, 32, 32), (6.9, 32, 32), (12.0, 36, 40)),
)
"""Billions of parameters, blocks and heads of Pythia's models; GPT-Neo's are among them."""

UNKNOWN_SAMPLES = 20_000
"""Assumed of a family whose number of samples only its dataset tells, until its table is there."""

TASK_TOKENS = 500_000
"""Tokens of a benchmark task, contexts shared by choices counted once: the mean of ARC-easy,
HellaSwag, PIQA, LAMBADA and WikiText."""

TOKEN_BYTES = 4
"""Bytes of text that a token stands for, about."""

DOCUMENT_TOKENS = {"wikitext": 5000}
"""Of a document; 200 of any other task, 60 of a generated one."""

LOAD_SECONDS = 120
"""To check and load a billion parameters: 4 GB, read twice at a shared 70 MB/s."""

START_SECONDS = 15
"""Of a stage that runs a model, to import torch and lm-eval, and for DVC."""


@dataclass(frozen=True)
class Size:
    """The sizes that determine the cost of a model: L, H, parameters.

    `estimated`: blocks and heads were told from the number of parameters alone.
    """

    n_blocks: int
    n_heads: int
    parameters: float
    estimated: bool = False


def size_of(study: Study, model: Model) -> Size:
    """The size of a model: from its training, manifest or config.json if here, else as it says."""
    made = model.checkpoint
    if isinstance(made, Continued):
        return size_of(study, study.model(made.base))
    if isinstance(made, Training):
        vocabulary = given(next(iter(study.corpus.values())).vocabulary)
        return Size(made.n_blocks, made.n_heads, _parameters(made.n_blocks, made.width, vocabulary))
    with suppress(InputError):
        known = read_manifest(study.checkpoint(model.name))
        return Size(known.n_blocks, known.n_heads, known.parameters)
    path: object = None
    if isinstance(made, Folder):
        path = Path(made.path) / "config.json"
    elif isinstance(made, Hub):
        path = try_to_load_from_cache(made.repo, "config.json", revision=made.commit)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # any JSON
        config: dict[str, Any] = json.loads(Path(str(path)).read_text(encoding="utf-8"))
        blocks = config.get("num_hidden_layers") or config["num_layers"]
        heads = config.get("num_attention_heads") or config["num_heads"]
        return Size(blocks, heads, _parameters(blocks, config["hidden_size"], config["vocab_size"]))
    billions = model.billions or 1.0
    _, blocks, heads = min(LADDER, key=lambda step: abs(math.log(step[0] / billions)))
    return Size(blocks, heads, billions * 1e9, estimated=True)


def _parameters(n_blocks: int, width: int, vocabulary: int) -> int:
    """Approximate number: matrices and biases of the blocks, and one embedding."""
    return n_blocks * (12 * width**2 + 13 * width) + vocabulary * width


def samples_of(study: Study, family: Family) -> int:
    """N: from the table if it is there, else as asked for; of a user's file an upper bound."""
    with suppress(OSError, ValueError):
        table = study.data / "samples" / f"{family.name}.parquet"
        return int(parquet.read_metadata(table).num_rows)
    source = family.samples
    if isinstance(source, Records):
        corpus = next(iter(study.corpus.values()))
        return sum(corpus.records.values()) + corpus.control_records
    if isinstance(source, Pile | Pythia):
        return source.n_memorized + source.control.n
    if isinstance(source, File):
        with suppress(OSError):  # the stage that reads the file reports the error
            size = Path(source.path).stat().st_size  # a token is at least one byte
            return size // (family.prefix_length + family.suffix_length)
    return UNKNOWN_SAMPLES


class Costs:
    """The costs of the stages of one study."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.size: Callable[[str], Size] = cache(lambda name: size_of(study, study.model(name)))
        self.samples: Callable[[str], int] = cache(
            lambda name: samples_of(study, study.family(name))
        )

    def interventions(self, model: Model) -> int:
        """V, the baseline among them."""
        return len(self._swept(model))

    def _swept(self, model: Model) -> tuple[Intervention, ...]:
        size = self.size(model.name)
        try:
            return sweep(size.n_blocks, self._study.interventions, size.n_heads)
        except ValueError:  # the stage that lists the interventions reports the error
            return sweep(size.n_blocks)

    def operations(self, group: str, model: Model) -> float:
        """FLOPs of a stage of a model; joining the parts of a table takes none.

        Every bypassed row is assumed to be decoded, which is the worst case.
        """
        if group.endswith("_part"):
            return self._operations(group.removesuffix("_part"), model) / self._study.parts
        joined = group in IN_PARTS and self._study.parts > 1
        return 0.0 if joined else self._operations(group, model)

    def _operations(self, group: str, model: Model) -> float:
        study, size, family = self._study, self.size(model.name), self._study.family(model.family)
        token = 2.0 * size.parameters  # of one text, through all blocks and the head
        length = family.prefix_length + family.suffix_length
        if group == "checkpoint":
            return 3 * token * training_tokens(study, model)
        if group == "generations":
            asked = given(study.generations)
            texts = 2 * len(asked.prompts) * (1 + len(set(asked.depths)))
            return token * texts * asked.new_tokens
        if group in ("divergence", "attribution"):  # a pass, and about as much for the bounds
            shared = build_trie(sweep(size.n_blocks), size.n_blocks).block_evaluations
            passes = 3.0 if group == "attribution" else 2 * shared / size.n_blocks
            samples: int = given(getattr(study, group)).samples
            return token * 2 * samples * length * passes
        if group == "windows":
            windows = given(study.windows)
            read = bytes_of(Path(windows.documents)) / TOKEN_BYTES
            return token * 3 * read * len(windows.of(model.name))
        if group not in ("memorization", "tokens", "benchmarks"):
            return 0.0
        trie = build_trie(self._swept(model), size.n_blocks)
        # passes of a token through all blocks: much is shared, and a fork costs about half a block
        passes = (trie.block_evaluations + (trie.branches - 1) / 2) / size.n_blocks
        if group == "benchmarks":
            return token * passes * sum(self.task_tokens().values())
        n = self.samples(model.family)
        if group == "tokens":
            # half a second of every start of Snakemake, which needs it for this alone
            from pipeline.measure.chosen import SPLITS, a_split

            return token * passes * length * len(SPLITS) * a_split(n)
        decode = study.evaluation[model.family].decode
        # a number is of each split, of which there are three at most
        decoded = {"all": n, "none": 0}.get(decode, 0) if isinstance(decode, str) else 3 * decode
        continued = min(n, decoded) * (trie.branches - 1) * family.suffix_length
        return token * (passes * n * length + continued)

    def task_tokens(self) -> dict[str, float]:
        """Benchmark task -> tokens that are read, examples among them."""
        asked = given(self._study.benchmarks)
        corpus = next(iter(self._study.corpus.values()), None)
        tokens = {}
        for task in asked.tasks:
            of_document = DOCUMENT_TOKENS.get(task, 60 if corpus else 200)
            most = TASK_TOKENS if corpus is None else corpus.task_items * of_document
            limit = asked.limit_of(task)
            read = most if limit is None else min(most, limit * of_document)
            tokens[task] = float(read * (1 + asked.num_fewshot))
        return tokens

    def seconds(self, group: str, model: Model, device: str) -> float:
        """Time of a stage of a model, with its start; `device` as of `operations_a_second`."""
        dtype, threads = self._study.evaluation[model.family].dtype, self._study.run.threads
        rate = self._recorded.get((group.removesuffix("_part"), device))
        rate = rate or operations_a_second(device, dtype, threads)
        loading = LOAD_SECONDS * model.billions + START_SECONDS
        return loading + self.operations(group, model) / rate

    @cached_property
    def _recorded(self) -> dict[tuple[str, str], float]:
        """Group of stages and device -> FLOPs a second that this study's stages reached there.

        A run that went on with kept shards, or with rows of an earlier table, tells no rate.
        """
        rates: dict[tuple[str, str], list[float]] = {}
        for model in self._study.models.values():
            for path in (self._study.data / "cost").glob(f"*/{model.name}.json"):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    sidecar = json.loads(path.read_text(encoding="utf-8"))
                    group, device = path.parent.name, sidecar.get("device", "cpu")
                    took, work = sidecar["wall_seconds"], self.operations(group, model)
                    many = self.interventions(model)
                    whole = sidecar.get("computed", many) == many
                    whole &= not sidecar.get("shards", {}).get("reused")
                    if whole and took > START_SECONDS / 3 and work:
                        rates.setdefault((group, device), []).append(work / took)
        return {where: median(reached) for where, reached in rates.items()}

    def weight_bytes(self, model: Model) -> float:
        """Bytes of a model's weights, in the precision in which it is evaluated."""
        dtype = self._study.evaluation[model.family].dtype
        return self.size(model.name).parameters * float(BYTES[dtype])


def training_tokens(study: Study, model: Model) -> int:
    """Tokens that a model sees in training; 0 if it is not trained here."""
    how = model.trained
    if how is None:
        return 0
    corpus = next(iter(study.corpus.values()))
    if isinstance(how, Continued):  # an upper bound
        family = study.family(model.family)
        least = family.samples.memorized_copies if isinstance(family.samples, Records) else 1
        learned = sum(records for copies, records in corpus.records.items() if copies >= least)
        length = family.prefix_length + family.suffix_length
        return how.most_rounds * how.epochs * learned * length
    planted = sum(copies * records for copies, records in corpus.records.items())
    row = corpus.row_length
    tokens = how.epochs * ((corpus.world_tokens or 0) + planted * row)
    return tokens if model.step is None else min(tokens, model.step * how.batch_rows * row)
