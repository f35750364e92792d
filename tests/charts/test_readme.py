"""The chart's README has a table of values, made of the comments in values.yaml."""

from __future__ import annotations

import json
import re

import yaml

from chart import CHART, UPDATE

BEGIN = "<!-- made from values.yaml; TIDEGATE_UPDATE=1 make chart-test writes it anew -->\n"


def described() -> list[tuple[str, str, str]]:
    """Name, default and description of every value that has one, in the order of the file."""
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comment: list[str] | None = None
    found = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped.removeprefix("# -- ")]
        elif stripped.startswith("# ") and comment is not None:
            comment.append(stripped.removeprefix("# "))
        elif match := re.match(r"( *)(\w+):", line):
            depth = len(match[1])
            if (
                comment is None
                and path
                and path[-1][0] < depth
                and found
                and found[-1][0] == ".".join(k for _, k in path)
            ):
                # Part of a value that is described as a whole.
                continue
            path = [(known, key) for known, key in path if known < depth] + [(depth, match[2])]
            name = ".".join(key for _, key in path)
            if comment is not None:
                value = values
                for key in name.split("."):
                    value = value[key]
                found.append((name, json.dumps(value), " ".join(comment)))
            comment = None
        else:
            comment = None
    return found


def leaves(value, path: str = "") -> list[str]:
    if not isinstance(value, dict) or not value or path.endswith(".resources"):
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, f"{path}.{key}".lstrip("."))]


def test_every_value_is_described():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert [name for name, _, _ in described()] == leaves(values)


def test_readme_is_made_of_the_comments():
    path = CHART / "README.md"
    head, mark, _ = path.read_text().partition(BEGIN)
    assert mark, "the mark before the table is gone"

    def cell(text: str) -> str:
        return text.replace("|", "\\|")

    rows = [f"| `{name}` | `{cell(default)}` | {cell(text)} |\n" for name, default, text in described()]
    text = head + BEGIN + "| value | default | what |\n|---|---|---|\n" + "".join(rows)
    if UPDATE:
        path.write_text(text)
    assert path.read_text() == text
