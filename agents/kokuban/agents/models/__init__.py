"""Model providers behind one small protocol and one meter.

Open a model with `open_model`, put a `Meter` before it, and make every call through the meter.
"""

from ._arguments import Problem, parse_arguments
from ._errors import (
    ModelAuthError,
    ModelConfigError,
    ModelCutOff,
    ModelDeadline,
    ModelError,
    ModelOverflow,
    ModelProtocolError,
    ModelRefused,
    ModelUnavailable,
    ModelUnreachable,
    RecordingMiss,
    ScriptMiss,
)
from ._gate import Gate, Slot
from ._meter import Attempt, Meter, Totals
from ._model import Model, Progress
from ._open import describe_ways, open_model
from ._prices import Price, Prices
from ._retry import RetryPolicy
from ._types import Call, CallContext, Delta, Message, OnDelta, Reply, Request, ToolSpec, Usage
from ._usage import estimate_request_tokens, estimate_tokens, worst_request_tokens

__all__ = [
    "Attempt",
    "Call",
    "CallContext",
    "Delta",
    "Gate",
    "Message",
    "Meter",
    "Model",
    "ModelAuthError",
    "ModelConfigError",
    "ModelCutOff",
    "ModelDeadline",
    "ModelError",
    "ModelOverflow",
    "ModelProtocolError",
    "ModelRefused",
    "ModelUnavailable",
    "ModelUnreachable",
    "OnDelta",
    "Price",
    "Prices",
    "Problem",
    "Progress",
    "RecordingMiss",
    "Reply",
    "Request",
    "RetryPolicy",
    "ScriptMiss",
    "Slot",
    "ToolSpec",
    "Totals",
    "Usage",
    "describe_ways",
    "estimate_request_tokens",
    "estimate_tokens",
    "open_model",
    "parse_arguments",
    "worst_request_tokens",
]
