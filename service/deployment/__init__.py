"""Ray Serve: the deployment, and the local cluster that `headroom serve` runs it on.

The only package of the service that imports ray. Importing the package itself does not: Ray reads most of its
settings from the environment when it is imported, so `environment` comes first.
"""

from __future__ import annotations

from typing import Any


def build(arguments: dict[str, Any]) -> Any:
    """The Serve application: `import_path: service.deployment:build` in deploy/serve.yaml.

    arguments: fields of `service.settings.Settings`; they win over the HEADROOM_* environment.
    """
    from service.deployment.replica import application

    return application(arguments)
