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
    names: dict[Path, str] = {}
    parts: list[str] = []

    def add(path: Path) -> str:
        """Add a module after those that it imports; return the constant that holds its exports."""
        if path in names:
            return names[path]

        def imported(match: re.Match[str]) -> str:
            what = match[1] if match[1].startswith("{") else f"{{default as {match[1]}}}"
            return f"const {what.replace(' as ', ': ')} = {add((path.parent / match[2]).resolve())};"

        text = _IMPORT.sub(imported, _DOC_COMMENT.sub("", path.read_text(encoding="utf-8")))
        exports = [match[2] for match in _DECLARED.finditer(text)]
        for match in _LISTED.finditer(text):
            pairs = (item.split(" as ") for item in match[1].split(",") if item.strip())
            exports += [f"{pair[-1].strip()}: {pair[0].strip()}" for pair in pairs]
        if _DEFAULT.search(text):
            exports.append("default: byDefault")
        text = _DEFAULT.sub("const byDefault = ", _LISTED.sub("", _DECLARED.sub(r"\1", text)))
        name = names[path] = f"module{len(parts)}"
        title = path.relative_to(root.resolve()).as_posix()
        returned = f"return {{ {', '.join(exports)} }};"
        parts.append(f"// {title}\nconst {name} = (() => {{\n{text.strip()}\n{returned}\n}})();\n")
        return name

    add((root / entry).resolve())
    listed = (f'"{path.relative_to(root.resolve()).as_posix()}": {name}' for path, name in names.items())
    return "\n".join([*parts, f"export const modules = {{ {', '.join(listed)} }};\n"])
