"""The memory of the machine, and what control groups leave of it."""

import psutil
import pytest

from pipeline.workflow.ram import free_ram

GIB = 1 << 30
NAMES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@pytest.fixture
def root(tmp_path):
    """A file system of 8 GiB that are free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    text = f"MemTotal: {16 << 20} kB\nMemAvailable:    {8 << 20} kB\nHugePages_Total:       0\n"
    (tmp_path / "proc/meminfo").write_text(text)
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/job\n4:memory:/job/step\n0::/job/step\n")
    return tmp_path


def limit(root, controllers, group, most, used, cached=0.0):
    """Write the files of a control group; GiB."""
    folder = root / "sys/fs/cgroup" / controllers / group
    folder.mkdir(parents=True, exist_ok=True)
    names = NAMES[controllers]
    (folder / names[0]).write_text(f"{most if isinstance(most, str) else int(most * GIB)}\n")
    (folder / names[1]).write_text(f"{int(used * GIB)}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {int(cached * GIB)}\n")


def test_no_control_group_limits_the_machines_memory(root):
    assert free_ram(root) == 8 * GIB
    (root / "proc/self/cgroup").rename(root / "kept")
    assert free_ram(root) == 8 * GIB
    (root / "kept").rename(root / "proc/self/cgroup")
    limit(root, "", "job", "max", 3)
    limit(root, "memory", "job", (1 << 63) // GIB - 1, 3)
    assert free_ram(root) == 8 * GIB


@pytest.mark.parametrize("controllers", NAMES)
@pytest.mark.parametrize("group", ["", "job", "job/step"])  # one above the process's own, too
def test_the_narrowest_group_counts(root, controllers, group):
    limit(root, controllers, group, 4, 3)
    limit(root, controllers, "elsewhere", 4, 4)
    assert free_ram(root) == GIB


@pytest.mark.parametrize("controllers", NAMES)
def test_cached_files_are_free(root, controllers):
    limit(root, controllers, "job", 4, 3.5, cached=2)
    assert free_ram(root) == 2.5 * GIB
    limit(root, controllers, "job", 4, 4.5)  # the kernel is about to reclaim some
    assert free_ram(root) == 0


def test_this_machine(root):
    assert 0 < free_ram() <= psutil.virtual_memory().total
    (root / "proc/meminfo").unlink()  # as on other systems than Linux
    assert 0 < free_ram(root) <= psutil.virtual_memory().total
