"""Stands in for pipeline/__main__.py in the tests of the DAG.

Every stage writes a checksum of all that it may read (command, params, data), so a change goes
exactly as far as the declarations in dvc.yaml carry it; the code is left out. What ran is appended
to ran.txt. A file fail/ADDRESS makes that stage fail; with slow/ADDRESS it runs until it is killed.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from ruamel.yaml import YAML

address = os.environ["DVC_STAGE"]
stage = json.loads(Path("stages.json").read_text())[address]

with Path("ran.txt").open("a") as ran:
    ran.write(f"{address}\n")
if Path("fail", address).exists():
    sys.exit(f"{address} was told to fail")
if Path("slow", address).exists():
    Path("slow", address).unlink()
    time.sleep(600)

digest = hashlib.sha256()
for file, keys in stage["params"].items():
    values = YAML(typ="safe").load(Path(file)) if file == "params.yaml" else {}
    for key in keys if values else ():
        value = values
        for part in key.split("."):
            value = value[part]
        digest.update(repr((key, value)).encode())
for dep in stage["deps"]:
    below = sorted(Path(dep).rglob("*")) if Path(dep).is_dir() else [Path(dep)]
    for file in below:
        if file.is_file() and file.suffix != ".py" and file.name != ".snakemake_timestamp":
            digest.update(file.read_bytes())

content = "checked" if address.startswith("check@") else digest.hexdigest()
for out in stage["outs"]:
    target = Path(out)
    if target.suffix in (".parquet", ".json", ".html"):
        target.parent.mkdir(parents=True, exist_ok=True)
    else:
        target.mkdir(parents=True, exist_ok=True)
        target /= "content"
    target.write_text(f"{out} {content}\n")
