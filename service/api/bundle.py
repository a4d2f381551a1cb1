"""Puts the page's ES modules into one, so that a browser asks for one script instead of fifty.

Each module becomes a function that is called once, after the modules that it imports. That covers the forms
that the page uses: `import {a, b as c} from "./x.js"`, `import d from "./x.js"`, and exports of functions,
classes, constants, lists and one default. Modules must not import each other in a circle.
"""

import re
from pathlib import Path

_IMPORT = re.compile(r'^\s*import\s*(\{[^}]*\}|\w+)\s*from\s*"(\.[^"]+)";?', re.MULTILINE)
_DECLARED = re.compile(r"^export ((?:async )?(?:function|class|const)\s+(\w+))", re.MULTILINE)
_LISTED = re.compile(r"export\s*\{([^}]*)\};?")
_DEFAULT = re.compile(r"\bexport default ")
_DOC_COMMENT = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/[ \t]*\n", re.MULTILINE | re.DOTALL)


def modules(root: Path, entry: str) -> str:
    """Return a module that runs `entry`, which lies below root, and exports all modules for tests."""
    root = root.resolve()
    names: dict[str, str] = {}
    parts: list[str] = []

    def add(path: Path) -> str:
        """Add a module after those that it imports; return the constant that holds its exports."""
        title = path.relative_to(root).as_posix()
        if title in names:
            return names[title]

        def imported(match: re.Match[str]) -> str:
            what = match[1] if match[1].startswith("{") else f"{{default as {match[1]}}}"
            return f"const {what.replace(' as ', ': ')} = {add((path.parent / match[2]).resolve())};"

        text = _IMPORT.sub(imported, _DOC_COMMENT.sub("", path.read_text(encoding="utf-8")))
        names[title] = f"module{len(parts)}"
        parts.append(f"// {title}\nconst {names[title]} = (() => {{\n{_as_function(text)}\n}})();\n")
        return names[title]

    add(root / entry)
    listed = ", ".join(f'"{title}": {name}' for title, name in names.items())
    return "\n".join([*parts, f"export const modules = {{ {listed} }};\n"])


def _as_function(text: str) -> str:
    """Return a module without imports as the body of a function that returns its exports."""
    exports = [match[2] for match in _DECLARED.finditer(text)]
    for match in _LISTED.finditer(text):
        pairs = (item.split(" as ") for item in match[1].split(",") if item.strip())
        exports += [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
    if _DEFAULT.search(text):
        exports.append("default: byDefault")
    text = _DEFAULT.sub("const byDefault = ", _LISTED.sub("", _DECLARED.sub(r"\1", text)))
    return f"{text.strip()}\nreturn {{ {', '.join(exports)} }};"
