"""Models behind Anthropic's Messages API, and servers that speak it."""

from ._messages import MessagesDialect, MessagesReply
from ._model import Progress
from ._openai import ChatCompletionsModel
from ._types import Request

VERSION = "2023-06-01"


class MessagesModel(ChatCompletionsModel):
    """One model, streamed over httpx. base_url ends before `/messages`; the key is sent as `x-api-key`."""

    path = "/messages"

    def _write(self, model: str) -> MessagesDialect:
        return MessagesDialect(model)

    def _read(self, request: Request, progress: Progress) -> MessagesReply:
        return MessagesReply(request, progress, self._model)

    def _credentials(self) -> dict[str, str]:
        return {"anthropic-version": VERSION} | ({"x-api-key": self._key} if self._key else {})
