"""The Ray Serve deployment, and the local cluster that `headroom serve` runs it on.

No other package of the service imports ray. Importing this package does not import ray either: Ray reads most
of its settings from the environment when it is imported, so `environment.prepare` must run first.
"""

from typing import Any


def build(arguments: dict[str, Any]) -> Any:
    """Return the Serve application; deploy/serve.yaml names it as `import_path: headroom.service.ray:build`.

    arguments: fields of `headroom.service.config.settings.Settings`; they override HEADROOM_* environment
    variables.
    """
    from headroom.service.ray.actor import Relevance, bind

    return bind(Relevance, arguments)
