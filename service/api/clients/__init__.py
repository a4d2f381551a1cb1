"""Other people's request and answer shapes: a file for each vendor, `base` for what they share."""

from fastapi import FastAPI

from service.api.clients import oip, rerank, tei_routes, vllm_score


def add_compat_routes(app: FastAPI) -> None:
    """Add every route for other people's clients."""
    rerank.add_routes(app)
    tei_routes.add_routes(app)
    vllm_score.add_routes(app)
    oip.add_routes(app)


__all__ = ["add_compat_routes"]
