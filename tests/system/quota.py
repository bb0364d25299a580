"""Cores taken away from a process, as a container with a quota has it."""

import contextlib
import pathlib


@contextlib.contextmanager
def quota(pid, share):
    """A share of one core for a process, by the kernel; None where groups cannot be made."""
    group = pathlib.Path(f"/sys/fs/cgroup/cpu/dp-test-{pid}")
    unified = not group.parent.exists()
    if unified:
        group = pathlib.Path(f"/sys/fs/cgroup/dp-test-{pid}")
    try:
        group.mkdir()
    except OSError:
        yield None
        return
    try:
        if unified:
            (group / "cpu.max").write_text(f"{int(share * 100000)} 100000")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(int(share * 100000)))
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    except OSError:
        yield None
    finally:
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
        with contextlib.suppress(OSError):
            group.rmdir()
