"""A program that behaves as Apptainer does towards the singularity backend's tests.

    stub_apptainer.py WORLD --version | exec ... | build TARGET SOURCE | sif list|dump ...

It is as strict about its command line as Apptainer 1.4 is, and complains in its words: those that
it printed, started as root without CAP_SYS_RESOURCE, on a machine without cgroups v2. What it is to
run it runs for real, in bubblewrap, over the image's files. WORLD is a directory:

    calls.jsonl   every command line, and the names of the variables it was called with
    registry/     the images that can be fetched, each a directory with an ``oci.json`` beside it
    no_namespaces if there is such a file, user namespaces are disabled
    limits        if there is such a file, containers can be limited
    slow          if there is such a file, fetching takes for ever
    straggler     if there is such a file, fetching starts a process that outlives it; it holds
                  the output if the file says ``holding``
    stuck         if there is such a file, no container starts or ends

A directory in an image that has a file ``.host`` is the machine's own; else it would take minutes
to copy a system. A SIF file is an archive.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import NoReturn

FLAGS = {
    *("--containall", "--no-init", "--no-umask", "--userns", "--fakeroot", "--no-home"),
    *("--writable-tmpfs", "--net"),
}
VALUED = {
    *("--home", "--workdir", "--overlay", "--bind", "--network", "--pwd"),
    *("--cpus", "--memory", "--pids-limit", "--drop-caps"),
}
LIMITS = {"--cpus", "--memory", "--pids-limit"}
NO_ROOT = (
    "ERROR  : Requesting capability set 0x000001ffffffffff while permitted capability set is "
    "0x000001fffeffffff"
)
NO_NAMESPACES = (
    "INFO   : A system administrator may need to enable user namespaces, install\n"
    "INFO   :   apptainer-suid, or compile with ./mconfig --with-suid\n"
    "ERROR  : Failed to create user namespace: maximum number of user namespaces exceeded, check "
    "/proc/sys/user/max_user_namespaces"
)
NO_LIMITS = (
    "container creation failed: while applying cgroups config: cannot use cgroups - cannot use "
    "systemd cgroups manager, systemd not running as init on this host"
)
OBJECTS = """\
------------------------------------------------------------------------------
ID   |GROUP   |LINK    |SIF POSITION (start-end)  |TYPE
------------------------------------------------------------------------------
1    |1       |NONE    |32176-32227               |Def.FILE
2    |1       |NONE    |32227-35952               |JSON.Generic
3    |1       |NONE    |35952-35974               |JSON.Generic
4    |1       |NONE    |36864-100626432           |FS (Squashfs/*System/amd64)
"""


def fatal(text: str, code: int = 255) -> NoReturn:
    """End as Apptainer ends."""
    sys.stderr.write(f"\x1b[31mFATAL:   {text}\x1b[0m\n")
    sys.exit(code)


def parsed(words: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Split ``exec``'s words into options and the rest."""
    options: dict[str, list[str]] = {}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        name, has_value, value = rest.pop(0).partition("=")
        if name in FLAGS and not has_value:
            options[name] = []
        elif name in VALUED:
            options.setdefault(name, []).append(value if has_value else rest.pop(0))
        else:
            sys.stderr.write(f'Error for command "exec": unknown flag: {name}\n')
            sys.exit(1)
    if len(rest) < 2:
        sys.stderr.write('Error for command "exec": requires at least 2 arg(s)\n')
        sys.exit(1)
    return options, rest


def check(world: Path, options: dict[str, list[str]]) -> None:
    """Refuse what would not work there, and what must not be."""
    for needed in ("--containall", "--no-init"):
        if needed not in options:
            fatal(f"stub: {needed} is missing, the sandbox would not be one", 3)
    if os.geteuid() == 0 and not {"--userns", "--fakeroot"} & options.keys():
        sys.stderr.write(f"{NO_ROOT}\n")
        sys.exit(1)
    if (world / "no_namespaces").exists():
        sys.stderr.write(f"{NO_NAMESPACES}\n")
        sys.exit(1)
    if LIMITS & options.keys() and not (world / "limits").exists():
        fatal(NO_LIMITS)
    if ("--net" in options) != (options.get("--network") == ["none"]):
        fatal("stub: --net and --network none belong together", 3)
    for name in ("--overlay", "--workdir"):
        for path in options.get(name, []):
            if not Path(path).is_dir():
                fatal(f"while loading overlay images: {path}: no such file or directory")


def root_of(image: Path, top: Path) -> list[str]:
    """Lay the image's files out below ``top``; return bubblewrap's words for what is mounted."""
    if image.is_dir():
        shutil.copytree(image, top, symlinks=True, dirs_exist_ok=True)
    elif not image.exists():
        fatal(
            f"While checking container encryption: could not open image {image}: failed to "
            f"retrieve path for {image}: lstat {image}: no such file or directory"
        )
    elif not tarfile.is_tarfile(image):
        fatal(
            f"While checking container encryption: could not open image {image}: image format "
            "not recognized"
        )
    else:
        with tarfile.open(image) as archive:
            archive.extractall(top / "..", members=[m for m in archive if m.name != "oci.json"])
    words = ["--bind", str(top), "/"]
    for marker in sorted(top.glob("*/.host")):
        words += ["--ro-bind", f"/{marker.parent.name}", f"/{marker.parent.name}"]
    return words


def mounts(options: dict[str, list[str]], overlay: Path) -> list[str]:
    """Return bubblewrap's words for what is mounted over the image's files."""
    workdir = Path(options["--workdir"][0]) if "--workdir" in options else overlay
    words = ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
    for name, place in (("tmp", "/tmp"), ("var_tmp", "/var/tmp")):
        (workdir / name).mkdir(exist_ok=True)
        words += ["--bind", str(workdir / name), place]
    for text in options.get("--bind", []):
        source, *more = text.split(":")
        if not os.path.exists(source):
            fatal(f"container creation failed: mount {source}->{source}: no such file or directory")
        how = "--ro-bind" if more[1:] == ["ro"] else "--dev-bind"
        words += [how, source, more[0] if more else source]
    for text in options.get("--home", []):
        words += ["--bind", *text.split(":")]
    return words


def execute(world: Path, words: list[str]) -> NoReturn:
    """Run a command in a container; become it."""
    options, (image, *command) = parsed(words)
    check(world, options)
    while (world / "stuck").exists():
        time.sleep(0.05)
    overlay = Path(options["--overlay"][0]) if "--overlay" in options else Path(world, "tmpfs")
    top = overlay / "upper"
    top.mkdir(parents=True, exist_ok=True)
    uid = 0 if "--fakeroot" in options else os.geteuid()
    home = options["--home"][0].split(":")[1] if "--home" in options else "/root"
    argv = ["bwrap", "--unshare-pid", "--unshare-ipc", "--as-pid-1", "--die-with-parent"]
    argv += ["--clearenv", "--unshare-user" if uid != os.geteuid() else "--unshare-user-try"]
    argv += ["--uid", str(uid), "--gid", str(uid)] if uid != os.geteuid() else []
    argv += ["--cap-drop", "ALL"]
    argv += root_of(Path(image), top) + mounts(options, overlay)
    argv += ["--unshare-net"] if "--net" in options else []
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": home, "LANG": "C"}
    for name, value in {**variables, "APPTAINER_CONTAINER": image}.items():
        argv += ["--setenv", name, value]
    argv += ["--chdir", options.get("--pwd", [home])[0], "--", *command]
    sys.stderr.write("INFO:    Setting up the container\n")
    sys.stderr.flush()
    os.execvp("bwrap", argv)


def build(world: Path, target: str, source: str) -> None:
    """Convert an image of the registry into an archive."""
    sys.stderr.write("INFO:    Starting build...\nINFO:    Fetching OCI image...\n")
    failed = "While performing build: conveyor failed to get: "
    if (world / "straggler").exists():
        output = None if (world / "straggler").read_text() == "holding" else subprocess.DEVNULL
        subprocess.Popen(["sleep", "515151"], stdout=output, stderr=output)
    if "unreachable" in source:
        fatal(
            f'{failed}Get "https://unreachable.example/v2/": dial tcp: lookup unreachable.example: '
            "no such host"
        )
    while (world / "slow").exists():
        time.sleep(0.05)
    image = world / "registry" / source.removeprefix("docker://").partition(":")[0]
    if not image.is_dir():
        fatal(
            f"{failed}GET https://registry.example/v2/x/manifests/latest: MANIFEST_UNKNOWN: "
            "manifest unknown; map[Tag:latest]"
        )
    with tarfile.open(target, "w") as archive:
        archive.add(image, arcname="upper")
        archive.add(f"{image}.json", arcname="oci.json")


def sif(words: list[str]) -> None:
    """List what a SIF file holds, or print one of it."""
    if words[0] == "list":
        if not tarfile.is_tarfile(words[1]):
            fatal("While loading SIF: image format not recognized")
        sys.stdout.write(OBJECTS)
        return
    number, path = words[1:]
    with tarfile.open(path) as archive:
        member = archive.extractfile("oci.json")
        assert member is not None
        config = member.read()
    sys.stdout.buffer.write(config if number == "3" else b'{"data": {"attributes": {}}}')


def main() -> None:
    """Do what the command line says."""
    world, (verb, *words) = Path(sys.argv[1]), sys.argv[2:]
    with (world / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"argv": [verb, *words], "env": sorted(os.environ)}) + "\n")
    if verb == "--version":
        print((world / "version").read_text())
    elif verb == "exec":
        execute(world, words)
    elif verb == "build":
        build(world, *words)
    elif verb == "sif":
        sif(words)
    else:
        sys.stderr.write(f'Error: Unknown command "{verb}" for "apptainer"\n')
        sys.exit(1)


if __name__ == "__main__":
    main()
