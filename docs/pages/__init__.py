"""Pages that are generated before a build, into `docs/generated`, which git ignores."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, content: str | bytes) -> None:
    """Write `content`, unless the file has it already: Sphinx then need not read it again."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_all(folder: Path) -> None:
    """Write every generated page below `folder`, and remove stale ones."""
    from pages.algorithms import algorithm_pages
    from pages.environments import environment_pages
    from pages.expectations import expectations_page
    from pages.gallery import gallery
    from pages.laptop import laptop_page
    from pages.leaderboard import leaderboard_page
    from pages.libraries import library_pages
    from pages.notebooks import notebook_pages
    from pages.papers import papers_page
    from pages.settings import settings_page

    contents: dict[Path, str | bytes] = {
        folder / "tables" / "expectations.md": expectations_page(),
        folder / "tables" / "gallery.md": gallery(),
        folder / "tables" / "laptop.md": laptop_page(),
        folder / "tables" / "leaderboard.md": leaderboard_page(),
        folder / "tables" / "papers.md": papers_page(),
        folder / "tables" / "settings.md": settings_page(),
        **{folder / "environments" / name: text for name, text in environment_pages().items()},
        **{folder / "algorithms" / name: text for name, text in algorithm_pages().items()},
        **{folder / "libraries" / name: text for name, text in library_pages().items()},
        **{folder / "notebooks" / name: text for name, text in notebook_pages().items()},
    }
    for path, content in contents.items():
        write(path, content)
    for path in folder.rglob("*"):
        if path.is_file() and path not in contents:
            path.unlink()
