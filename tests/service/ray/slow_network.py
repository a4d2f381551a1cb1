"""The service with a network that is as slow as BERT-base's shape on one core of the EPYC that the docs name.

It waits in place of computing, so that a small machine can run several of them. What a test shows with it is
how the service deals with this rate.
"""

import time
from collections.abc import Sequence
from typing import Any

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.service.config.file import DEPLOYMENT

TOKENS_PER_SECOND = 66 * 25.0
"""66 pairs/s of 25 tokens (docs/operations.md, "Sizing")."""


def build(arguments: dict[str, Any]) -> Any:
    """Return the application, as `headroom.service.ray.build` does, which imports Ray no earlier either."""
    from ray import serve

    from headroom.service.ray.actor import Relevance, bind

    ours: Any = Relevance

    class Slow(ours.func_or_class):  # type: ignore[misc]
        """A replica whose forward passes take TOKENS_PER_SECOND."""

        def _import(self) -> Any:
            start = super()._import()
            from headroom.models.classifier import Classifier

            forward = Classifier.forward

            def slow(self: Classifier, pairs: Sequence[EncodedPair], *masks: Any, **options: Any) -> Any:
                time.sleep(sum(map(len, pairs)) / TOKENS_PER_SECOND)
                return forward(self, pairs, *masks, **options)

            Classifier.forward = slow  # type: ignore[method-assign]
            return start

    return bind(serve.deployment(Slow, name=DEPLOYMENT, user_config={}), arguments)
