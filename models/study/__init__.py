"""Head studies: which attention heads matter, asked of any checkpoint with anybody's labelled pairs.

One module a question (`single`, `random_heads`, `layers`, `roles`, `similarity`, `search`), each with
`run(study) -> Result`; `kinds` for all of them. `base` holds what they share, `runner` evaluates many masks
in one pass, `statistics` has the tests, `report` writes what was found.
"""
