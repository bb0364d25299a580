#!/usr/bin/env python3
"""Runs programs in a virtual machine whose kernel has an RDMA device in software (rdma_rxe).

The kernel, its modules and the first process's shell are Debian's: their packages are downloaded
and unpacked below the build directory, nothing is installed. No hardware support is used (TCG).

  run_vm.py DIRECTORY PROGRAM...    a program may have arguments, in one word
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
TIMEOUT_S = 240
# In the order in which they depend on each other.
MODULES = ["crc32_generic", "crc32c_generic", "udp_tunnel", "ip6_udp_tunnel", "ib_core",
           "ib_uverbs", "rdma_rxe", "dummy"]
DRIVER = "libibverbs/librxe-rdmav34.so"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def kernel_package():
    depends = output("apt-cache", "depends", "linux-image-amd64")
    return re.search(r"Depends: (linux-image-\S+)", depends).group(1)


def download(package, directory):
    found = sorted(directory.glob(f"{package}_*.deb"))
    if not found:
        subprocess.run(["apt-get", "download", "-q", package], cwd=directory, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        found = sorted(directory.glob(f"{package}_*.deb"))
    return found[-1]


def unpack(deb, directory, patterns):
    """The members of the package that match."""
    if (directory / "done").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as stream:
        subprocess.run(["tar", "-x", "-C", directory, "--wildcards", *patterns],
                       stdin=stream.stdout, check=True)
    (directory / "done").touch()


def fetch(directory):
    """The kernel's image, the folder of its modules, and busybox."""
    try:
        kernel = download(kernel_package(), directory)
        busybox = download("busybox-static", directory)
    except (subprocess.CalledProcessError, AttributeError) as failure:
        reason = (getattr(failure, "stderr", None) or str(failure)).strip().splitlines()[-1:]
        skip(f"the packages linux-image-amd64 and busybox-static cannot be had: {reason}")
    unpack(kernel, directory / kernel.stem,
           ["./boot/vmlinuz*"] + [f"*/{name}.ko" for name in MODULES])
    unpack(busybox, directory / busybox.stem, ["./bin/busybox"])
    root = directory / kernel.stem
    return next(root.glob("boot/vmlinuz*")), root, directory / busybox.stem / "bin/busybox"


class Archive:
    """An initial file system, in the "newc" form of cpio."""

    def __init__(self):
        self.bytes = bytearray()
        self.names = set()

    def entry(self, name, mode, data=b"", device=(0, 0)):
        if name in self.names:
            return
        self.names.add(name)
        if "/" in name:
            self.entry(os.path.dirname(name), 0o40755)
        fields = [len(self.names), mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0]
        self.bytes += b"070701" + b"".join(b"%08X" % field for field in fields)
        self.bytes += name.encode() + b"\0"
        self.pad()
        self.bytes += data
        self.pad()

    def pad(self):
        self.bytes += b"\0" * (-len(self.bytes) % 4)

    def file(self, name, path):
        self.entry(name.lstrip("/"), 0o100755, pathlib.Path(path).read_bytes())

    def program(self, name, path):
        """With the libraries that it is linked with."""
        self.file(name, path)
        for word in output("ldd", path).split():
            if word.startswith("/"):
                self.file(word, word)


def find_driver():
    for folder in pathlib.Path("/usr/lib").glob("*-linux-gnu"):
        if (folder / DRIVER).exists():
            return folder / DRIVER
    return None


def build_image(image, modules, busybox, programs):
    archive = Archive()
    for name in ["proc", "sys", "dev", "tmp", "run"]:
        archive.entry(name, 0o40755)
    archive.entry("dev/console", 0o20600, device=(5, 1))
    archive.file("init", HERE / "init.sh")
    archive.file("bin/busybox", busybox)
    for name in MODULES:
        archive.file(f"modules/{name}.ko", next(modules.glob(f"**/{name}.ko")))
    archive.entry("modules/order", 0o100644, " ".join(MODULES).encode())
    archive.program("usr/bin/rdma", shutil.which("rdma"))
    driver = find_driver()
    archive.program(str(driver), driver)
    library = next(driver.parent.parent.glob("libibverbs.so.1"))
    archive.program(str(library), library)
    archive.entry("etc/libibverbs.d/rxe.driver", 0o100644, b"driver rxe\n")
    for program in programs:
        path = program.split()[0]
        archive.program("usr/bin/" + os.path.basename(path), path)
    lines = [" ".join(["/usr/bin/" + os.path.basename(p.split()[0])] + p.split()[1:])
             for p in programs]
    archive.entry("programs", 0o100644, ("\n".join(lines) + "\n").encode())
    archive.entry("TRAILER!!!", 0)
    # Not compressed: what is saved in writing it costs more when the machine unpacks it.
    image.write_bytes(archive.bytes)


def run(kernel, image):
    command = ["qemu-system-x86_64", "-accel", "tcg", "-M", "pc", "-cpu", "max", "-smp", "2",
               "-m", "2048", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
               "-kernel", kernel, "-initrd", image,
               "-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          errors="replace") as machine:
        try:
            text, _ = machine.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            machine.kill()
            text = machine.communicate()[0] + f"\nFAIL the machine has not ended in {TIMEOUT_S} s"
    return text


def main():
    directory = pathlib.Path(sys.argv[1])
    programs = sys.argv[2:]
    for tool in ["qemu-system-x86_64", "rdma", "dpkg-deb", "apt-get"]:
        if shutil.which(tool) is None:
            skip(f"there is no {tool} (deploy/setup test)")
    if find_driver() is None:
        skip("there is no librxe of package ibverbs-providers (deploy/setup test)")
    directory.mkdir(parents=True, exist_ok=True)
    kernel, modules, busybox = fetch(directory)
    image = directory / "initrd"
    build_image(image, modules, busybox, programs)
    text = run(kernel, image)
    print(text)
    failed = re.search(r"^FAIL", text, re.M) or text.count("DONE") != len(programs)
    ended = re.search(r"^END after", text, re.M)
    sys.exit(1 if failed or not ended else 0)


if __name__ == "__main__":
    main()
