"""Why a model call failed. Every error carries its own retry policy; only the meter's retry layer acts on it."""


class ModelError(Exception):
    """Base of all errors of this part. A raised one means: no reply, and no part of one was taken as a reply.

    retryable: the same request may succeed later.
    elsewhere: the fault is this model's and not the request's, so another model may serve it.
    spent: the server may have used tokens on it.
    code: the server's own error code or type, or ours.
    status: the HTTP status, or the one the server wrote into its error.
    retry_after_seconds: how long the server asked us to wait.
    attempts: how many attempts were made before giving up; 0 when raised outside a meter.
    """

    retryable = False
    elsewhere = False
    spent = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        spent: bool | None = None,
        elsewhere: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.attempts = 0
        if spent is not None:
            self.spent = spent
        if elsewhere is not None:
            self.elsewhere = elsewhere

    def hide(self, secret: str | None) -> None:
        """Take a secret that a server echoed out of the text. Below 4 characters it is a placeholder, not a secret."""
        if secret and len(secret) >= 4:
            self.args = tuple(arg.replace(secret, "[key]") if isinstance(arg, str) else arg for arg in self.args)
            self.code = self.code.replace(secret, "[key]") if self.code else self.code


class ModelConfigError(ModelError):
    """The model, its address or its key is not configured rightly: a usage error, nothing was sent."""


class ModelUnreachable(ModelError):
    """No connection to the server; the request was not sent."""

    retryable = True
    elsewhere = True


class ModelCutOff(ModelError):
    """The connection or the stream broke before the reply was complete."""

    retryable = True
    elsewhere = True
    spent = True


class ModelUnavailable(ModelError):
    """The server cannot serve this now: overloaded, rate limited, or failing."""

    retryable = True
    elsewhere = True


class ModelRefused(ModelError):
    """The server will not serve this request, now or later."""


class ModelOverflow(ModelRefused):
    """The request does not fit the model's window. Smaller, it may: the loop makes it so, once."""


class ModelAuthError(ModelRefused):
    """The server refused the key, or wants one."""

    elsewhere = True


class ModelProtocolError(ModelError):
    """What answers is not a chat-completions server, or does not behave as one."""

    elsewhere = True
    spent = True


class ModelDeadline(ModelError):
    """The caller's deadline passed before a reply was complete."""

    spent = True


class ScriptMiss(ModelError):
    """No entry of the script answers this call."""


class RecordingMiss(ModelError):
    """The recording holds no reply for this call."""
