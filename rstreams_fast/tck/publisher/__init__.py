"""``PublisherVerification``: the verification of a publisher."""

from __future__ import annotations

from rstreams_fast.tck.publisher.verification import PublisherVerification

__all__ = ["PublisherVerification"]
