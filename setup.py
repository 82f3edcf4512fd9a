"""Build the extension modules; everything that is only metadata is in pyproject.toml.

Every ``.pyx`` file under ``runtime/`` and ``ipu_keras/compiler/`` becomes an extension module. The vector kernels of
``runtime/kernels`` are compiled once and linked into each extension that cimports them. Generated C files and objects
go to ``build/``, so the tree stays clean, and a repeated build compiles only what has changed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
KERNELS = Path("runtime/kernels")
MSVC = sys.platform == "win32"
MACOS = sys.platform == "darwin"

# The kernels must give the same bits whatever instruction set they are compiled for, hence no contraction to FMA.
C_FLAGS = (
    ["/O2"]
    if MSVC
    else [
        "-O3",
        "-std=gnu11",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fvisibility=hidden",
        "-g0",
    ]
)
OPENMP_COMPILE = ["/openmp"] if MSVC else ["-Xpreprocessor", "-fopenmp"] if MACOS else ["-fopenmp"]
OPENMP_LINK = [] if MSVC else ["-lomp"] if MACOS else ["-fopenmp"]
PACKAGE_FOLDERS = {"ipu_keras": "ipu_keras", "ipu_runtime": "runtime"}


def pyx_files() -> list[Path]:
    """Every Cython source of the project, relative to the root."""
    os.chdir(ROOT)
    return sorted(p for folder in ("runtime", "ipu_keras/compiler") for p in Path(folder).rglob("*.pyx"))


def module_name(path: Path) -> str:
    """Import name of a source file: ``runtime/codelets/x.pyx`` is ``ipu_runtime.codelets.x``."""
    parts = list(path.with_suffix("").parts)
    if parts[0] == "runtime":
        parts[0] = "ipu_runtime"
    return ".".join(parts)


def cython_path() -> str:
    """A folder in which ``runtime/`` is called ``ipu_runtime``, so that its .pxd files are found by that name."""
    folder = ROOT / "build" / "cython_path"
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in PACKAGE_FOLDERS.items():
        link, target = folder / name, ROOT / source
        if link.is_symlink():
            if link.resolve() == target:
                continue
            link.unlink()
        elif link.exists():
            shutil.rmtree(link)
        try:
            link.symlink_to(target, target_is_directory=True)
        except OSError:  # no right to make links: copy what cimport needs
            shutil.copytree(target, link, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    return str(folder)


def uses_kernels(path: Path) -> bool:
    """Whether the module refers to the vector kernels (cimports `_vec`, or names a header of runtime/kernels)."""
    text = path.read_text()
    if path.with_suffix(".pxd").exists():
        text += path.with_suffix(".pxd").read_text()
    return re.search(r"_vec\s+cimport|cimport\s+.*\b_vec\b|\"vec\w*\.h\"", text) is not None


def extension(path: Path) -> Extension:
    """The extension module of one Cython source."""
    ext = Extension(
        module_name(path),
        [str(path)],
        include_dirs=["runtime", str(KERNELS), numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        extra_compile_args=C_FLAGS + OPENMP_COMPILE,
        extra_link_args=list(OPENMP_LINK),
        libraries=[] if MSVC else ["m"],
        depends=[str(p) for folder in (Path("runtime"), KERNELS) for p in sorted(folder.glob("*.h"))],
    )
    ext.needs_kernels = uses_kernels(path)
    return ext


def extensions() -> list[Extension]:
    """All extension modules, with their C files made."""
    wanted = [extension(p) for p in pyx_files()]
    needs = {e.name: e.needs_kernels for e in wanted}
    made = cythonize(
        wanted,
        include_path=[cython_path()],
        build_dir="build/cython",
        nthreads=0,
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
        },
    )
    for ext in made:
        ext.needs_kernels = needs[ext.name]
    return made


class BuildExt(build_ext):
    """build_ext that compiles the kernels once and does again only what is out of date."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count() or 1

    def build_extensions(self) -> None:
        self._kernel_objects: list[str] = []
        if any(e.needs_kernels for e in self.extensions) and not all(self._in_tree_copy(e) for e in self.extensions):
            self._kernel_objects = self._compile_kernels()
        super().build_extensions()

    def _compile_kernels(self) -> list[str]:
        """Object files of runtime/kernels/*.c, compiled in parallel, kept between builds."""
        folder = f"kernels-{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
        sources = sorted(str(p) for p in KERNELS.glob("*.c"))
        newest_header = max(p.stat().st_mtime for p in [*KERNELS.glob("*.h"), Path("setup.py")])

        def compile_one(source: str) -> str:
            (target,) = self.compiler.object_filenames([source], output_dir=os.path.join("build", folder))
            newest = max(newest_header, os.path.getmtime(source))
            if self.force or not os.path.exists(target) or os.path.getmtime(target) < newest:
                self.compiler.compile(
                    [source],
                    output_dir=os.path.join("build", folder),
                    include_dirs=[str(KERNELS)],
                    extra_postargs=list(C_FLAGS),
                )
            return target

        with ThreadPoolExecutor(self.parallel if isinstance(self.parallel, int) else 1) as pool:
            return list(pool.map(compile_one, sources))

    def _in_tree_copy(self, ext: Extension) -> Path | None:
        """The extension's file of the last editable build, if nothing it is made from has changed since."""
        if self.force or not getattr(self, "editable_mode", False):
            return None
        (source,) = pyx_of(ext)
        built = source.parent / Path(self.get_ext_filename(ext.name.rpartition(".")[2])).name
        made_from = [*map(Path, ext.sources), *map(Path, ext.depends), source, Path("setup.py")]
        if ext.needs_kernels:
            made_from += [*KERNELS.glob("*.c"), *KERNELS.glob("*.h")]
        if built.exists() and all(p.stat().st_mtime <= built.stat().st_mtime for p in made_from if p.exists()):
            return built
        return None

    def build_extension(self, ext: Extension) -> None:
        ready = self._in_tree_copy(ext)
        if ready is not None:
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ready, target)
            return
        if ext.needs_kernels:
            ext.extra_objects = [*ext.extra_objects, *self._kernel_objects]
        super().build_extension(ext)


def pyx_of(ext: Extension) -> list[Path]:
    """The Cython source that an extension module comes from."""
    return [p for p in pyx_files() if module_name(p) == ext.name]


if platform.machine().lower() in {"i386", "i486", "i586", "i686"}:
    raise SystemExit("ipu_keras: 32-bit x86 is not supported (x87 arithmetic does not round as the emulator needs)")

if __name__ == "__main__":
    os.chdir(ROOT)
    setup(
        package_dir=PACKAGE_FOLDERS,
        packages=[
            package.replace(folder, name, 1)
            for name, folder in PACKAGE_FOLDERS.items()
            for package in [folder, *(f"{folder}.{p}" for p in find_packages(folder))]
        ],
        include_package_data=False,  # what the sdist holds is not what the wheel holds
        package_data={
            "ipu_keras": ["py.typed"],
            "ipu_runtime": ["py.typed", "*.pxd", "*.h", "kernels/*.h"],
            "ipu_runtime.codelets": ["*.pxd"],
        },
        ext_modules=extensions(),
        cmdclass={"build_ext": BuildExt},
    )
