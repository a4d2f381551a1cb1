"""Head studies: which attention heads matter to a checkpoint, on anybody's labelled pairs.

Each kind of study is a module whose `run(study)` measures and makes the parts of the report. `kinds` names
them and runs one or all. `study` is what a kind is given, `page` what it returns and how that is shown.
`runner` evaluates many masks in one pass, `statistics` has the tests, and `report_files` writes the files.
"""

from typing import Literal

Kind = Literal["single", "random", "layers", "roles", "similarity", "initialisation", "search", "all"]
"""The questions of a study, of which `all` asks every one."""

Part = Literal["encoder", "cross"]
"""Whose heads `single` switches off: the encoder's, or those of the query generator's encoder–decoder
attention."""
