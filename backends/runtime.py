"""The read-only interpreter directory that is mounted into sandboxes to run the outpost.

A sandbox's image may hold no Python, an old one, or one that the agent replaced. So the backends
that can mount something bring their own: a directory with this host's interpreter, the dynamic
loader and every shared library it needs, and exactly the standard-library modules that the
programs in it import. It runs in an empty image::

    /.hermes/lib/ld-linux-x86-64.so.2 --library-path /.hermes/lib /.hermes/bin/python3 -IS ...

The directory is named after a digest of everything that goes into it, is built once per host under
the cache directory, and appears there by one rename: concurrent builders are safe, a killed one
leaves only a temporary directory that a later build removes.

Needs Linux and a dynamically linked CPython (glibc; musl is untested).
"""

from __future__ import annotations

import dis
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import CodeType

import anyio
import anyio.to_thread
import orjson
from anyio import Path as AsyncPath

from hermes_rl.backends.elf import dynamic_loader, loadable_part
from hermes_rl.errors import BackendUnavailable
from hermes_rl.loop_limiter import LoopLimiter

__all__ = [
    "GUESTS",
    "MANIFEST",
    "MOUNT_POINT",
    "PROGRAMS",
    "Runtime",
    "RuntimeImpossible",
    "build_runtime",
    "ensure_runtime",
    "kept_runtime",
]

MOUNT_POINT = "/.hermes"
"""Where sandboxes see the directory."""
PROGRAMS = ("outpost", "deadline", "place", "rewritten")
"""The programs in the directory: modules of :mod:`hermes_rl.backends.outpost`."""
GUESTS = (
    *("bundle", "guard", "host_survey", "image_archive"),
    *("image_mount", "leftovers", "sandbox_lock"),
)
"""Modules that are sent as source to where the directory lies; what they import is in it."""

_FORMAT = 1
"""Part of the digest; raised whenever the layout below changes."""
MANIFEST = "manifest.json"
"""Names every file of the directory with its size; written last."""
_ABANDONED_AFTER_S = 3600.0
"""A temporary directory older than this belongs to a builder that was killed."""
_UNUSED_AFTER_S = 30 * 86400.0
"""What no run has opened for so long goes when another is built; no run lasts longer."""
_SUBPROCESS_TIMEOUT_S = 60.0
_PLACE_ERRORS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR}
)
"""Another place for the directory would help."""
_OWN_IMPORTS = (
    *("encodings.ascii", "encodings.latin_1", "encodings.utf_8"),
    *("binascii", "traceback"),
)
"""What the interpreter may import on its own account at run time, and what starts an outpost."""
_BUILDERS = LoopLimiter(1)

_PROBE = """
import os, sys
for name in sys.argv[1:]:
    try:
        __import__(name)
    except ImportError:
        pass
stdlib = os.path.dirname(os.__file__)
files = {getattr(module, "__file__", None) for module in sys.modules.values()} - {None}
for name in sys.modules:
    stem = os.path.join(stdlib, *name.split("."))
    files.update(filter(os.path.isfile, (stem + ".py", os.path.join(stem, "__init__.py"))))
head = [os.path.realpath("/proc/self/exe"), stdlib, sys.base_prefix]
sys.stdout.write("\\0".join(head + sorted(files)))
"""
"""Imports what it is told; prints its executable, stdlib, prefix and every module's file. A module
may have put another in its place (collections.abc), hence the second look, by name."""
_COMPILE = """
import importlib.util, os, py_compile, sys
root, mount, *names = sys.argv[1:]
for name in names:
    source = os.path.join(root, name)
    target = source + "c" if "/" not in name else importlib.util.cache_from_source(source)
    py_compile.compile(source, target, os.path.join(mount, name), doraise=True,
                       invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    os.chmod(target, 0o644)
"""
"""Compiles the programs beside their source, modules into __pycache__; never checked again."""


@dataclass(slots=True, frozen=True)
class Runtime:
    """A built directory and how to start it.

    Attributes:
        path: The directory on this host.
        loader: The dynamic loader, relative to the directory.
    """

    path: Path
    loader: str

    @property
    def digest(self) -> str:
        """Digest of the contents; two directories with the same digest are interchangeable."""
        return self.path.name.removeprefix("runtime-")

    def argv(self, program: str, *arguments: str, mount: str = MOUNT_POINT) -> list[str]:
        """Return the command that runs one of :data:`PROGRAMS` where the directory is mounted.

        The interpreter is isolated (no PYTHON* variables, no user site), unbuffered, and in UTF-8
        mode whatever locale the image sets.
        """
        return [*self.interpreter(mount), f"{mount}/{program}.pyc", *arguments]

    def code_argv(self, code: str, *arguments: str, mount: str = MOUNT_POINT) -> list[str]:
        """Return the command that runs a program text likewise; it may import what ours do."""
        return [*self.interpreter(mount), "-c", code, *arguments]

    def interpreter(self, mount: str = MOUNT_POINT) -> list[str]:
        """Return the words that start the interpreter, without a program."""
        python = [
            f"{mount}/{self.loader}",
            "--library-path",
            f"{mount}/lib",
            f"{mount}/bin/python3",
        ]
        return [*python, "-ISu", "-Xutf8"]


class RuntimeImpossible(BackendUnavailable):
    """This machine can never make the directory of this interpreter."""


async def ensure_runtime(cache_dir: Path) -> Runtime:
    """Return this host's runtime directory, building it if it is not there yet.

    Raises:
        RuntimeImpossible: It can never be built here; says why.
        BackendUnavailable: It cannot be built now; says why.
    """
    return await anyio.to_thread.run_sync(build_runtime, cache_dir, limiter=_BUILDERS)


async def kept_runtime(runtime: Runtime) -> Runtime:
    """Return a runtime that was made before, made again if the cache was emptied meanwhile.

    Raises:
        BackendUnavailable: See :func:`ensure_runtime`.
    """
    if await AsyncPath(runtime.path, MANIFEST).exists():
        return runtime
    return await ensure_runtime(runtime.path.parent)


def build_runtime(
    cache_dir: Path,
    *,
    python: Path | None = None,
    programs: Mapping[str, Path] | None = None,
) -> Runtime:
    """Blocking form of :func:`ensure_runtime`.

    Args:
        cache_dir: Where runtime directories live.
        python: Interpreter to copy; None = the one that runs us, outside its virtual environment.
        programs: Name and source of each program to put in; None = :data:`PROGRAMS`.

    Raises:
        RuntimeImpossible: It can never be built here; says why.
        BackendUnavailable: It cannot be built now; says why.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeImpossible(
            "Sandboxes with a mounted interpreter need Linux on the host; run hermes_rl in Linux."
        )
    interpreter = python or Path(getattr(sys, "_base_executable", "") or sys.executable)
    try:
        guests = [] if programs else [_program(name) for name in GUESTS]
        programs = programs or {name: _program(name) for name in PROGRAMS}
        plan = _plan(interpreter, programs, guests)
        target = cache_dir / f"runtime-{plan.digest()}"
        if not _is_complete(target):
            _install(plan, target)
        os.utime(target)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        kind = RuntimeImpossible if isinstance(error, _NotCopyable) else BackendUnavailable
        raise kind(
            f"The interpreter directory for sandboxes cannot be made from {interpreter} in "
            f"{cache_dir}: {error}{_remedy(error)}"
        ) from error
    return Runtime(target, plan.loader)


def _remedy(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in _PLACE_ERRORS:
        return ". Set XDG_CACHE_HOME to a directory of yours that has room."
    return ""


class _NotCopyable(ValueError):
    """Of an interpreter: what it is made of cannot be put into a directory."""


@dataclass(slots=True, frozen=True)
class _Plan:
    """What goes into the directory: path there -> file here."""

    python: Path
    loader: str
    stdlib: str
    binaries: Mapping[str, Path]
    modules: Mapping[str, Path]
    programs: Mapping[str, Path]

    def digest(self) -> str:
        digest = hashlib.sha256(f"format {_FORMAT}".encode())
        for name, source in sorted({**self.binaries, **self.modules, **self.programs}.items()):
            with source.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256")
            digest.update(f"\n{name} {content.hexdigest()}".encode())
        return digest.hexdigest()[:24]


def _program(name: str) -> Path:
    return Path(str(files("hermes_rl.backends.outpost").joinpath(f"{name}.py")))


def _plan(interpreter: Path, programs: Mapping[str, Path], guests: Sequence[Path]) -> _Plan:
    importing = [*programs.values(), *guests]
    imports = sorted({name for path in importing for name in _imports(path)})
    executable, stdlib, prefix, *loaded = _probe(interpreter, imports)
    lib_dir = os.path.relpath(stdlib, prefix)
    found = {f"{lib_dir}/{_inside(path, stdlib)}": Path(path) for path in loaded}
    extensions = {name: path for name, path in found.items() if path.suffix == ".so"}
    modules = {name: path for name, path in found.items() if path.suffix == ".py"}
    loader = _loader_of(Path(executable))
    libraries = _shared_libraries(loader, [Path(executable), *extensions.values()])
    return _Plan(
        python=interpreter,
        loader=f"lib/{loader.name}",
        stdlib=lib_dir,
        binaries={
            "bin/python3": Path(executable),
            f"lib/{loader.name}": loader,
            **{f"lib/{name}": path for name, path in libraries.items()},
            **extensions,
        },
        modules=modules | {f"{lib_dir}/os.py": Path(stdlib, "os.py")},
        programs={f"{name}.py": path for name, path in programs.items()},
    )


def _imports(source: Path) -> Iterator[str]:
    """Names of what a file imports anywhere, from its code: 3.11's ast fails beside threads."""
    codes = [compile(source.read_bytes(), source, "exec", dont_inherit=True)]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                yield str(instruction.argval)


def _probe(interpreter: Path, imports: Sequence[str]) -> list[str]:
    command = [str(interpreter), "-IS", "-c", _PROBE, *_OWN_IMPORTS, *imports]
    return _output(command).split("\0")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_SUBPROCESS_TIMEOUT_S
    )
    if done.returncode:
        raise ValueError(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _inside(path: str, stdlib: str) -> str:
    """Where a module belongs below the standard library; extensions elsewhere go to lib-dynload."""
    relative = os.path.relpath(path, stdlib)
    return f"lib-dynload/{os.path.basename(path)}" if relative.startswith("..") else relative


def _loader_of(executable: Path) -> Path:
    loader = dynamic_loader(executable.read_bytes())
    if loader is None:
        raise _NotCopyable(f"{executable} is not a dynamically linked 64-bit program")
    return Path(loader)


def _shared_libraries(loader: Path, objects: Sequence[Path]) -> dict[str, Path]:
    """Ask the loader which libraries the objects need: name -> file."""
    found: dict[str, Path] = {}
    for binary in objects:
        for line in _output([str(loader), "--list", str(binary)]).splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            if arrow and rest.startswith("not found"):
                raise ValueError(f"{binary} needs {name}, which is not installed")
            if arrow and rest.startswith("/"):
                found[os.path.basename(name)] = Path(rest.rsplit(" (", 1)[0])
    found.pop(loader.name, None)
    for libc in [path for name, path in found.items() if name.startswith("libc.so")]:
        # Before glibc 2.34 looking up a user loads this library by name.
        if (name_service := libc.with_name("libnss_files.so.2")).exists():
            found[name_service.name] = name_service
    return found


def _is_complete(target: Path) -> bool:
    """The manifest is there and every file has its size (a power cut may tear files)."""
    try:
        manifest = orjson.loads((target / MANIFEST).read_bytes())
        return all((target / name).stat().st_size == size for name, size in manifest.items())
    except (OSError, orjson.JSONDecodeError):
        return False


def _install(plan: _Plan, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_old(target.parent, ".runtime-*", _ABANDONED_AFTER_S)
    _remove_old(target.parent, "runtime-*", _UNUSED_AFTER_S)
    with tempfile.TemporaryDirectory(
        prefix=".runtime-", dir=target.parent, ignore_cleanup_errors=True
    ) as scratch:
        built = Path(scratch, "built")
        _fill(plan, built)
        broken = Path(scratch, "broken")
        if target.exists() and not _is_complete(target):
            with suppress(FileNotFoundError):
                target.rename(broken)
        try:
            built.rename(target)
        except OSError:
            # A concurrent builder was faster; its directory is as good as ours.
            if not _is_complete(target):
                raise


def _remove_old(cache_dir: Path, pattern: str, age_s: float) -> None:
    for path in cache_dir.glob(pattern):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > age_s:
                shutil.rmtree(path, ignore_errors=True)


def _fill(plan: _Plan, root: Path) -> None:
    for name, source in plan.binaries.items():
        _write(root / name, loadable_part(source.read_bytes()), mode=0o755)
    for name, source in {**plan.modules, **plan.programs}.items():
        _write(root / name, source.read_bytes(), mode=0o644)
    # The interpreter looks for this directory by name when it locates its standard library.
    (root / plan.stdlib / "lib-dynload").mkdir(exist_ok=True)
    _compile(plan, root)
    for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        directory.chmod(0o755)
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in _files(root)}
    _write(root / MANIFEST, orjson.dumps(sizes), mode=0o644)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _write(path: Path, data: bytes, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def _compile(plan: _Plan, root: Path) -> None:
    """Compile with the copied interpreter's version; the code names its path in sandboxes."""
    command = [str(plan.python), "-IS", "-c", _COMPILE, str(root), MOUNT_POINT]
    _output([*command, *plan.programs, *plan.modules])
