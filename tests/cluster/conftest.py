"""A SLURM cluster of one node and an ssh server, real ones, started by hand for the tests alone.

Nothing of the machine's own configuration is read or changed, and no service manager is needed:
the daemons run on free ports, on files in a temporary folder, and end with the tests.
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GPUS = ("/dev/null", "/dev/zero")
"""Any two device files do for SLURM, which counts and assigns them and opens neither."""

SLURM_CONF = """
ClusterName=tests
MinJobAge=7200
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
# control groups would need the machine's own; processes are found and measured through /proc
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MpiDefault=none
# a busy machine answers, and starts jobs, later than the usual 10 seconds
MessageTimeout=100
BatchStartTimeout=300
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
ReturnToService=2
# the node is as large as it says, whatever machine it is
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=500000 Gres=gpu:{gpus}
PartitionName=main Nodes=ALL Default=YES
"""


def require(*commands: str) -> None:
    """Skip where a command is missing."""
    missing = [command for command in commands if not _find(command)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found; make test-cluster installs what is missing")


def _find(command: str) -> str | None:
    """Daemons lie in folders that not everyone's PATH has."""
    return shutil.which(command, path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin")


@contextmanager
def daemon(folder: Path, name: str, *options: str) -> Iterator[None]:
    """Run a daemon in the foreground of a process of our own, and end it in any case."""
    command = [str(_find(name)), *options]
    with (
        (folder / f"{name}.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_until(ready: Callable[[], bool], folder: Path, seconds: float = 120) -> None:
    """Wait, and show what the daemons in `folder` said should it be in vain."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            logs = [f"{log.name}:\n{log.read_text()}" for log in sorted(folder.glob("*.log"))]
            pytest.fail("not ready in time\n" + "\n".join(logs))
        time.sleep(0.2)


def listed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """SLURM of one node with two GPUs; its commands, and all that is started here, talk to it."""
    require("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
    if os.geteuid() != 0:
        pytest.skip("only root may start jobs as their owners, as slurmd does")
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as name,  # a socket's path has to be short
        pytest.MonkeyPatch.context() as environment,
    ):
        folder = Path(name)
        folder.chmod(0o711)  # munged insists that everyone can reach its socket
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        conf = folder / "slurm.conf"
        conf.write_text(
            SLURM_CONF.format(
                host=socket.gethostname().partition(".")[0],
                controller=free_port(),
                node=free_port(),
                folder=folder,
                gpus=len(GPUS),
            )
        )
        (folder / "gres.conf").write_text("".join(f"Name=gpu File={file}\n" for file in GPUS))
        key = folder / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        environment.setenv("SLURM_CONF", str(conf))
        # within a job the executor drops SLURM_CONF, and srun would look for the machine's own
        srun = folder / "srun"
        srun.write_text(f'#!/bin/sh\nexec env SLURM_CONF={conf} {_find("srun")} "$@"\n')
        srun.chmod(0o755)
        environment.setenv("PATH", str(folder), prepend=os.pathsep)
        environment.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # that of the machine's own
        own = [f"--{file}-file={folder}/munge.{file}" for file in ("key", "pid", "seed")]
        with daemon(folder, "munged", "--foreground", f"--socket={folder}/munge.socket", *own):
            wait_until((folder / "munge.socket").exists, folder)
            with daemon(folder, "slurmctld", "-D"), daemon(folder, "slurmd", "-D"):
                wait_until(lambda: listed("sinfo", "--noheader", "--format=%T") == "idle", folder)
                try:
                    yield
                finally:
                    listed("scancel", "--user=root")
                    wait_until(lambda: not listed("squeue", "--noheader"), folder)


SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/member.pub
# the temporary folder's own permissions are not those of a home
StrictModes no
PasswordAuthentication no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""


@pytest.fixture(scope="session")
def ssh_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of an ssh server on the loopback address, and the key by which this user logs in."""
    require("sshd", "ssh-keygen")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "member"):
        key = ("-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        subprocess.run(["ssh-keygen", *key], check=True)
    if os.geteuid() == 0:  # where Debian's sshd gives up its rights; a service manager makes it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(SSHD_CONFIG.format(port=port, folder=folder))
    with daemon(folder, "sshd", "-D", "-e", "-f", str(config)):
        wait_until(lambda: _answers(port), folder)
        yield port, folder / "member"


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0
