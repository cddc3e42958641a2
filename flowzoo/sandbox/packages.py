"""Packages that programs may import besides the standard library, by name, never implied.

A box imports them, with one thread each, before it sees a program, so that a fork has them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path

from flowzoo.errors import UsageError, check_choice

# Supported packages: they start no threads and read no files after their import.
PACKAGES = ("numpy",)


def package_names(text: str) -> tuple[str, ...]:
    """The names in a text such as `numpy`, separated by commas, in order."""
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def check_packages(text: str | Iterable[str]) -> tuple[str, ...]:
    """The names, each of which is known and installed here."""
    names = package_names(text) if isinstance(text, str) else tuple(sorted(set(text)))
    for name in names:
        check_choice("package of the sandbox", name, PACKAGES)
    package_folders(names)
    return names


def package_folders(names: Iterable[str]) -> list[Path]:
    """The folders of installed packages: their modules, and the libraries that lie beside them."""
    folders = []
    for name in names:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise UsageError(
                f"the package {name} is not installed here, so no sandbox can have it: "
                f"pip install {name}"
            )
        home = Path(places[0]).resolve()
        folders += [path for path in (home, home.with_name(f"{name}.libs")) if path.is_dir()]
    return folders


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Name -> version of installed packages."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def package_remedy(missing: Collection[str]) -> str:
    """Advice for tests that need these modules."""
    names = ",".join(sorted(set(missing) & set(PACKAGES)))
    if not names:
        return f"A sandbox can have {', '.join(PACKAGES)}, and nothing else."
    return (
        f"Give it to programs and tests with --options packages={names} (an image of your own: "
        f"flowzoo sandbox build --with {names})."
    )
