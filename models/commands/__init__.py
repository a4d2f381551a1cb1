"""The commands that work on models: train, evaluate, study, prune, quantize and condense.

`service.cli` registers them in the `headroom` program, and adds to `host` what `models` cannot know.
"""
