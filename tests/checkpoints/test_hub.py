"""A published checkpoint: pinned file by file, described from its headers, refused if it is odd."""

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load, save
from torch import Tensor
from transformers import AutoModelForCausalLM

from pipeline.checkpoints import fit, loading, schema
from pipeline.checkpoints.folder import describe
from pipeline.checkpoints.hub import fetch_checkpoint
from pipeline.checkpoints.loading import load_model
from pipeline.checkpoints.manifest import Manifest, read_manifest, write_manifest
from pipeline.checkpoints.verified import load_tokenizer
from pipeline.workflow.errors import Problem
from pipeline.workflow.files import checksums
from pipeline.workflow.hub import CHECKPOINT_FILES, snapshot
from tests.hub import miniatures
from tests.hub.population import GPT_NEO, PICKLE_ONLY, PYTHIA, SHARDED
from tests.hub.server import Hub
from tests.project import refused

pytestmark = pytest.mark.usefixtures("hub_home")

PYTHIA_70M, GPT_NEO_125M = "EleutherAI/pythia-70m", "EleutherAI/gpt-neo-125m"
KNOWN = {**PYTHIA, **GPT_NEO}
WIDTH, VOCABULARY, PADDED = miniatures.WIDTH, miniatures.VOCABULARY, miniatures.PYTHIA_PADDED

Change = Callable[[dict[str, bytes]], Any]
"""Of a repository's files, by path."""


def block_parameters() -> int:
    """Of a block of either family, but for the biases of GPT-NeoX's attention."""
    return 12 * WIDTH * WIDTH + 4 * WIDTH + 6 * WIDTH


PARAMETERS = {
    # two embeddings, blocks, the last norm; the three biases of queries, keys and values
    PYTHIA_70M: 2 * PADDED * WIDTH + 6 * (block_parameters() + 3 * WIDTH) + 2 * WIDTH,
    # one embedding that is also the head, positions, blocks, the last norm
    GPT_NEO_125M: (VOCABULARY + miniatures.CONTEXT) * WIDTH + 12 * block_parameters() + 2 * WIDTH,
}


def fetched(
    repo: str, folder: Path, commit: str | None = None, billions: float = 0, step: int | None = None
) -> Manifest:
    """The manifest of a repository of the local hub; of its true size unless given."""
    commit = commit or KNOWN[repo][0]
    blocks = KNOWN[repo][1] if repo in KNOWN else 2
    if not billions:
        per_block = block_parameters() + 3 * WIDTH
        billions = (2 * PADDED * WIDTH + blocks * per_block) / 1e9
    source, run = schema.Hub(repo=repo, commit=commit, billions=billions), {}
    if step is not None:
        run = {"run": "mini", "step": step}
    model = schema.Model(name="mini", family="minis", checkpoint=source, **run)
    return fetch_checkpoint(folder, model, source)


def refusal(folder: Path, repo: str, commit: str | None = None, **options: Any) -> Problem:
    problem = refused(fetched, repo, folder, commit, **options)
    assert not list(folder.parent.glob(f"*{folder.name}*")), "nothing is left half-written"
    return problem


def variant(hub: Hub, change: Change, sharded: bool = False, neo: bool = False) -> str:
    """The commit of mini/odd: a Pythia of two blocks, or a GPT-Neo, changed."""
    files = dict(miniatures.gpt_neo(2) if neo else miniatures.pythia(2, sharded=sharded))
    change(files)
    return hub.model("mini/odd").add(files)


@pytest.mark.parametrize(
    ("repo", "blocks", "vocabulary", "dtype"),
    [
        (PYTHIA_70M, 6, PADDED, "float16"),
        (SHARDED, 32, PADDED, "float16"),
        (GPT_NEO_125M, 12, VOCABULARY, "float32"),
    ],
)
def test_a_manifest_says_what_a_checkpoint_is(
    hub: Hub, tmp_path: Path, repo: str, blocks: int, vocabulary: int, dtype: str
) -> None:
    folder = tmp_path / "checkpoint"
    manifest = fetched(repo, folder)
    assert (manifest.name, manifest.family, manifest.seed) == ("mini", "minis", None)
    assert manifest.origin == {"repo": repo, "commit": KNOWN[repo][0]}
    assert (manifest.n_blocks, manifest.width, manifest.n_heads) == (blocks, WIDTH, 4)
    assert (manifest.context, manifest.vocabulary) == (miniatures.CONTEXT, vocabulary)
    assert (manifest.tokens, manifest.dtype) == (VOCABULARY, dtype)
    if repo in PARAMETERS:
        assert manifest.parameters == PARAMETERS[repo]
        assert manifest.weight_bytes("float16") == 2 * PARAMETERS[repo]
    assert read_manifest(folder) == manifest
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    # no pickles, nothing of other frameworks, no code
    left_out = (".bin", ".msgpack", ".ot", "README.md", ".gitattributes")
    files = hub.model(repo).files()
    assert set(manifest.files) == {name for name in files if not name.endswith(left_out)}
    assert hub.requests(r"\.(bin|msgpack|ot|py)$") == []
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in CHECKPOINT_FILES)


def test_describing_reads_no_weights() -> None:
    files = snapshot(PYTHIA_70M, KNOWN[PYTHIA_70M][0], CHECKPOINT_FILES)
    model, tokens = describe(files, "a checkpoint")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert tokens == VOCABULARY


def test_another_size_than_the_study_says_is_refused(tmp_path: Path) -> None:
    size = PARAMETERS[PYTHIA_70M] / 1e9
    for share in (1.08, 0.92):
        fetched(PYTHIA_70M, tmp_path / "fits", billions=share * size)
    for share in (1.2, 0.8):
        problem = refusal(tmp_path / "checkpoint", PYTHIA_70M, billions=share * size)
        assert problem.got == f"{size:.4g} billion parameters"
        assert problem.expected == f"{share * size:g}, as the study says of mini"
        assert "`billions`" in problem.remedy


def test_a_checkpoint_of_pickles_alone_is_refused(hub: Hub, tmp_path: Path) -> None:
    commit = hub.model(PICKLE_ONLY).resolve("main")
    problem = refusal(tmp_path / "checkpoint", PICKLE_ONLY, commit)
    assert problem.got == "no safetensors"
    assert "a pickle is never loaded" in problem.expected
    assert "refs/pr" in problem.remedy
    assert hub.requests("pytorch_model.bin") == []


def _run(hub: Hub, step: Mapping[str, bytes]) -> tuple[str, str]:
    """The commits of step 1,000 and of `main` of mini/odd; other files are those of the model."""
    rest = {n: c for n, c in miniatures.pythia(2).items() if not n.endswith(".safetensors")}
    repository = hub.model("mini/odd")
    early = repository.add({**rest, **step}, ref="step1000")
    whole = {**rest, "model.safetensors": miniatures.pythia(2)["model.safetensors"]}
    return early, repository.add(whole)


def _own_weights(**options: bool) -> dict[str, bytes]:
    """Weights, other than those of the final model, in one file or in shards."""
    made = miniatures.pythia(2, **options)
    changed = {n: c[:-1] + bytes([c[-1] ^ 1]) for n, c in made.items() if n.endswith("safetensors")}
    return changed | {n: c for n, c in made.items() if n.endswith("safetensors.index.json")}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_step_with_weights_of_its_own_is_taken_and_once_cached_needs_no_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    early, _ = _run(hub, _own_weights(sharded=sharded))
    made = fetched("mini/odd", tmp_path / "online", early, step=1000)
    assert made.origin == {"repo": "mini/odd", "commit": early}
    assert made.n_blocks == 2
    hub.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetched("mini/odd", tmp_path / "offline", early, step=1000)
    online, offline = (tmp_path / name / "manifest.json" for name in ("online", "offline"))
    assert online.read_bytes() == offline.read_bytes()
    assert hub.log == []


@pytest.mark.parametrize("beside", [False, True])
def test_a_step_with_the_weights_of_the_final_model_is_refused(
    hub: Hub, tmp_path: Path, beside: bool
) -> None:
    """Every step of Pythia 2.8b has the final file beside its own shards."""
    single = {"model.safetensors": miniatures.pythia(2)["model.safetensors"]}
    others = _own_weights(sharded=True) if beside else {"README.md": b"step 1000"}
    early, final = _run(hub, single | others)
    problem = refusal(tmp_path / "checkpoint", "mini/odd", early, step=1000)
    checksum = hashlib.sha256(single["model.safetensors"]).hexdigest()
    assert problem.what == f"mini/odd at {early}, step 1000"
    assert problem.got == (
        f"model.safetensors with checksum {checksum}, the same as in main, which is {final}"
    )
    assert problem.expected == "weights of this step, other than those of the final model"
    assert "for the last step, name the commit of main" in problem.remedy
    assert hub.requests(r"resolve.*safetensors") == []
    made = fetched("mini/odd", tmp_path / "final", final, step=143000)
    assert made.files["model.safetensors"] == checksum


def _config(**changes: object) -> Change:
    def change(files: dict[str, bytes]) -> None:
        files["config.json"] = json.dumps(json.loads(files["config.json"]) | changes).encode()

    return change


def _content(content: bytes, name: str) -> Change:
    return lambda files: files.update({name: content})


Weights = dict[str, Tensor]
BIAS = "gpt_neox.layers.1.mlp.dense_4h_to_h.bias"


def _tensors(change: Callable[[Weights], Any]) -> Change:
    def edit(files: dict[str, bytes]) -> None:
        weights = load(files["model.safetensors"])
        change(weights)
        files["model.safetensors"] = save(weights, {"format": "pt"})

    return edit


def _second_value(delta: float) -> Change:
    """The first tensor of the first shard stands in the second as well, changed by so much."""

    def change(files: dict[str, bytes]) -> None:
        one, two = sorted(name for name in files if name.endswith(".safetensors"))
        key, value = next(iter(load(files[one]).items()))
        files[two] = save({**load(files[two]), key: value + delta}, {"format": "pt"})

    return change


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
WHOLE = miniatures.pythia(2)[SINGLE]


class Case(NamedTuple):
    """What is changed of a repository, and a pattern of what is said after its commit."""

    change: Change
    told: str
    config_is_enough: bool = False
    sharded: bool = False
    neo: bool = False


def unknown(change: Change, config_is_enough: bool = True) -> Case:
    told = r"\A\n.*\n +expected: a configuration and a tokenizer that transformers knows\n"
    return Case(change, told, config_is_enough)


def in_vain(key: str, value: object, named: str = "", neo: bool = False) -> Case:
    """Named before it is built: that would take for ever, or all memory."""
    told = rf"\A: config\.json: {named or key}\n"
    return Case(_config(**{key: value}), told, config_is_enough=True, neo=neo)


def unfit(change: Change, got: str, neo: bool = False) -> Case:
    """Transformers draws at random what is missing, and says so in a warning."""
    return Case(change, rf": weights\n +got: +{re.escape(got)}", neo=neo)


CODE = {"AutoConfig": "code.Config", "AutoModel": "code.M"}
ROTARY, DEFAULT = "rope_parameters", {"rope_type": "default"}
REFUSED: dict[str, Case] = {
    "unknown": unknown(_config(model_type="unheard_of", architectures=["Unheard"])),
    "no type": unknown(_config(model_type=None)),
    "of images": unknown(_config(model_type="vit")),
    "code of its own": unknown(_config(model_type="unheard_of", auto_map=CODE)),
    "no heads": unknown(_config(num_attention_heads=0)),
    "no number": unknown(_config(hidden_size="wide")),
    "broken": unknown(_content(b"{", "config.json")),
    "a list": unknown(_content(b"[]", "config.json")),
    "missing": unknown(lambda files: files.pop("config.json"), config_is_enough=False),
    "no tokenizer": unknown(_content(b"{}", "tokenizer.json"), config_is_enough=False),
    **{f"{n} blocks": in_vain("num_hidden_layers", n) for n in (0, -1, 10**9)},
    "kinds": in_vain("attention_types", [[["global", "local"], 10**9]], neo=True),
    "context": in_vain("max_position_embeddings", 10**12),
    "quantization": in_vain(
        "quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}
    ),
    "head size": in_vain("head_dim", 10**9),
    "old rotary share": in_vain("rotary_pct", 1e9, ROTARY),
    "old scaling": in_vain("rope_scaling", DEFAULT | {"partial_rotary_factor": 1e9}, ROTARY),
    "rotary share": in_vain(ROTARY, DEFAULT | {"partial_rotary_factor": 50}),
    "rotary base": in_vain(ROTARY, DEFAULT | {"rope_theta": -1}),
    "a tensor missing": unfit(_tensors(lambda w: w.pop(BIAS)), f"1 missing: ['{BIAS}']"),
    "a tensor left over": unfit(
        _tensors(lambda w: w.update({BIAS.replace("1", "2"): w[BIAS].clone()})),
        f"1 not used: ['{BIAS.replace('1', '2')}']",
    ),
    "another shape": unfit(
        _tensors(lambda w: w.update({BIAS: torch.zeros(WIDTH + 1)})),
        f"1 of another shape: ['{BIAS} [{WIDTH + 1}], not [{WIDTH}]']",
    ),
    "a tensor quantized": unfit(
        _tensors(lambda w: w.update({BIAS: w[BIAS].to(torch.int8)})), f"1 missing: ['{BIAS}']"
    ),
    "a block missing": unfit(_config(num_hidden_layers=3), "12 missing: ['gpt_neox.layers.2."),
    "a block left over": unfit(_config(num_hidden_layers=1), "12 not used: ['gpt_neox.layers.1."),
    "as many words as memory": unfit(_config(vocab_size=10**9), "2 of another shape: "),
    "as wide as memory": unfit(_config(intermediate_size=10**9), "6 of another shape: "),
    "a head neither stored nor tied": unfit(
        _config(tie_word_embeddings=False), "1 missing: ['lm_head.weight']", neo=True
    ),
    **{
        f"without {shard}": Case(lambda f, s=shard: f.pop(s), f"expected: .*{shard}", sharded=True)
        for shard in SHARDS
    },
    **{
        case: Case(_content(content, SINGLE), "expected: a safetensors file")
        for case, content in {
            "empty": b"",
            "one byte": b"\0",
            "a pointer": b"version https://git-lfs\n",
            "an endless header": struct.pack("<Q", 1 << 40),
            "cut": WHOLE[:-100],
        }.items()
    },
    "quantized": Case(
        _content(save({"weight": torch.zeros(4, dtype=torch.int8)}), SINGLE),
        r"got: +weights stored as I8\n.*\n +remedy: .*not quantized",
    ),
    "two values": Case(_second_value(1), f"got: +other values in {SHARDS[0]}", sharded=True),
    # as in the step revisions of pythia-2.8b, whose one file is of the last step
    "two sets": Case(_content(WHOLE, SINGLE), f"{SINGLE}, and beside it {INDEX}", sharded=True),
    **{
        f"the index {index!r}": Case(_content(index, INDEX), f": {INDEX}\n", sharded=True)
        for index in (b"{", b"{}", b"[]")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_repository_that_is_not_a_whole_model_is_refused(
    hub: Hub, tmp_path: Path, case: str
) -> None:
    change, told, config_is_enough, sharded, neo = REFUSED[case]
    commit = variant(hub, change, sharded=sharded, neo=neo)
    said = str(refusal(tmp_path / "checkpoint", "mini/odd", commit))
    assert said.startswith(f"mini/odd at {commit}")
    assert re.search(told, said.removeprefix(f"mini/odd at {commit}"))
    assert not (config_is_enough and hub.requests("safetensors"))


def _old_neox(weights: Weights) -> None:
    weights["embed_out.weight"] = weights.pop("lm_head.weight")
    for block in range(2):
        name = f"gpt_neox.layers.{block}.attention.rotary_emb.inv_freq"
        weights[name] = torch.ones(WIDTH // 8)


def _old_neo(weights: Weights) -> None:
    for block in range(2):
        name = f"transformer.h.{block}.attn.attention"
        causal = torch.ones(1, 1, miniatures.CONTEXT, miniatures.CONTEXT, dtype=torch.uint8)
        weights |= {f"{name}.bias": causal, f"{name}.masked_bias": torch.tensor(-1e9)}


def _bare_neo(weights: Weights) -> None:
    for name in list(weights):
        weights[name.removeprefix("transformer.")] = weights.pop(name)


@pytest.mark.parametrize("old", [_old_neox, _old_neo, _bare_neo])
def test_the_names_of_older_files_are_taken(
    hub: Hub, tmp_path: Path, old: Callable[[Weights], None]
) -> None:
    """Masks and angles that older versions stored are ignored, by transformers or by us."""
    neo = old is not _old_neox
    states = []
    for name, change in (("new", lambda weights: None), ("old", old)):
        commit = variant(hub, _tensors(change), neo=neo)
        billions = PARAMETERS[GPT_NEO_125M] - 10 * block_parameters() if neo else 0
        fetched("mini/odd", tmp_path / name, commit, billions / 1e9)
        states.append(load_model(tmp_path / name, "float32").state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_stored_masks_are_known_by_their_names_and_biases_are_none() -> None:
    """Of GPT-2 and GPT-J, whose module has a shorter name, too."""
    for part in ("attention", "attn", "attn.attention"):
        for name in ("bias", "masked_bias"):
            assert fit._MASKS.search(f"transformer.h.0.{part}.{name}")
    for name in ("attn.c_attn.bias", "attn.bias.weight", "mlp.bias", "attention.dense.bias"):
        assert not fit._MASKS.search(f"transformer.h.0.{name}")


def test_a_tensor_that_is_stored_twice_is_taken(hub: Hub, tmp_path: Path) -> None:
    commit = variant(hub, _second_value(0), sharded=True)
    assert fetched("mini/odd", tmp_path / "checkpoint", commit).n_blocks == 2


@pytest.mark.parametrize("repo", [PYTHIA_70M, GPT_NEO_125M])
def test_what_is_loaded_is_what_the_hub_has(hub: Hub, tmp_path: Path, repo: str) -> None:
    folder, straight = tmp_path / "checkpoint", tmp_path / "straight"
    fetched(repo, folder)
    straight.mkdir()
    for name, content in hub.model(repo).files().items():
        if not name.endswith((".bin", ".msgpack")):
            (straight / name).write_bytes(content)
    hub.log.clear()
    model = load_model(folder, "float32")
    expected = AutoModelForCausalLM.from_pretrained(
        straight, dtype=torch.float32, local_files_only=True
    )
    text = "the old ship stands under a red tree"
    tokens = torch.tensor([load_tokenizer(folder)(text).input_ids])
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected(tokens).logits)
    assert not model.training
    assert hub.log == [], "it lies in the cache"


@pytest.fixture
def emptied(hub_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Of the smallest Pythia, whose weights the cache does not have any more."""
    manifest = fetched(PYTHIA_70M, tmp_path / "checkpoint")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub_home / "another"))
    return manifest


def test_an_empty_cache_is_filled_again_at_the_same_commit(
    hub: Hub, emptied: Manifest, tmp_path: Path
) -> None:
    hub.model(PYTHIA_70M).add({"config.json": b"a later commit"})
    hub.log.clear()
    assert load_model(tmp_path / "checkpoint", "float16").num_parameters() == emptied.parameters
    asked = {request.path.rpartition("/")[2] for request in hub.requests("/resolve/")}
    assert asked == set(emptied.files)
    assert all(emptied.origin["commit"] in request.path for request in hub.log)


def test_a_hub_that_has_other_files_under_that_commit_is_refused(
    hub: Hub, emptied: Manifest, tmp_path: Path
) -> None:
    files = hub.model(PYTHIA_70M).files() | {SINGLE: miniatures.pythia(5)[SINGLE]}
    hub.model(PYTHIA_70M).add(files, emptied.origin["commit"])
    problem = refused(load_model, tmp_path / "checkpoint", "float16")
    assert problem.what.endswith(SINGLE)
    assert problem.expected == f"sha256 {emptied.files[SINGLE]}"


def _own(tmp_path: Path, change: Change = lambda files: None) -> tuple[Path, Path]:
    """A user's folder of weights, changed, and the manifest that names it."""
    below, folder = tmp_path / "own", tmp_path / "checkpoint"
    below.mkdir()
    folder.mkdir()
    files = dict(miniatures.pythia(2))
    change(files)
    for name, content in files.items():
        if not name.endswith(".bin"):
            (below / name).write_bytes(content)
    model = AutoModelForCausalLM.from_pretrained(below, local_files_only=True)
    origin, sums = {"folder": str(below)}, checksums(below)
    told = {"tokens": VOCABULARY, "origin": origin, "files": sums}
    write_manifest(folder, model, name="own", family="minis", **told)
    return below, folder


@pytest.mark.parametrize("by_header", [True, False])
@pytest.mark.parametrize("case", ["a tensor missing", "a tensor left over", "a block missing"])
def test_what_does_not_fit_is_refused_whatever_the_manifest_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, by_header: bool
) -> None:
    _, folder = _own(tmp_path, REFUSED[case].change)
    if not by_header:
        monkeypatch.setattr(loading, "skeleton", lambda *_: None)
    assert re.search(REFUSED[case].told, str(refused(load_model, folder, "float32")))


def test_a_users_folder_is_loaded_from_where_it_lies_unless_it_changed(
    hub: Hub, tmp_path: Path
) -> None:
    below, folder = _own(tmp_path)
    weights = below / SINGLE
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + b"?")
    problem = refused(load_model, folder, "float16")
    assert problem.what == str(weights)
    assert problem.got.startswith("sha256 ")
    weights.write_bytes(content)
    assert load_model(folder, "float16").config.num_hidden_layers == 2
    assert len(load_tokenizer(folder)) == VOCABULARY
    assert hub.log == []
