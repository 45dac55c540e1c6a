"""The folders of the repository against what an installation of it holds."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
MAPPED = {name: ROOT / folder for name, folder in SETUPTOOLS["package-dir"].items()}
BARE = sorted(folder.name for name, folder in MAPPED.items() if name != "accel")


def installed_files() -> dict[str, Path]:
    """Where each source file belongs in an installation: `accel/caches/table.py` -> its path here."""
    return {
        f"{name.replace('.', '/')}/{file.relative_to(folder).as_posix()}": file
        for name, folder in MAPPED.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_package_list_equals_folders() -> None:
    found = {str(Path(f).parent).replace("/", ".") for f in installed_files() if f.endswith(".py")}
    assert sorted(found) == sorted(SETUPTOOLS["packages"])


@pytest.mark.parametrize("name", BARE)
def test_bare_name_is_refused(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / name / "__init__.py")
    with pytest.raises(ImportError, match=f"import accel.{name}, not {name}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("name", BARE)
def test_every_bare_name_is_banned_by_lint(name: str) -> None:
    banned = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert banned[name]["msg"] == f"import accel.{name}"


def test_wheel_holds_every_file_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"  # a copy: a build leaves its traces beside what it builds
    for folder in MAPPED.values():
        shutil.copytree(folder, source / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", tmp_path, source], check=True)

    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    metadata = {name for name in names if name.startswith("diffusers_accel-0.1.0.dist-info/")}
    assert set(names) - metadata == set(installed_files())
    assert any(name.endswith("/licenses/LICENSE") for name in metadata)


def test_import_is_light(tmp_path: Path) -> None:
    """`import accel` by itself reads neither torch nor anything built on it."""
    show = "import sys, accel; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", show], cwd=tmp_path, check=True, capture_output=True, text=True)
    heavy = {"torch", "numpy", "PIL", "diffusers", "transformers", "accelerate", "gradio", "matplotlib", "peft"}
    assert heavy.isdisjoint(run.stdout.split())


def test_library_imports_only_what_it_requires() -> None:
    """An import at the top of a module needs a core dependency; what an extra brings is imported where it is used."""
    required = {re.match(r"[\w-]+", line)[0] for line in PROJECT["project"]["dependencies"]}
    required |= {"PIL", "huggingface_hub", "tokenizers"}  # pillow's import name; what transformers always brings
    allowed = {*sys.stdlib_module_names, *required, "accel"}
    for name, file in installed_files().items():
        if name.endswith(".py") and not name.startswith(("accel/app/", "accel/distill/")):
            tree = ast.parse(file.read_text())
            imports = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
            imports += [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
            assert {each.split(".")[0] for each in imports} <= allowed, name
