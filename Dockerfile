# One image for the supervisor and every role; the command says which: docker run kokuban worker coder
# A verifier runs a task's checks in this image: derive your own to add the programs that they need.
FROM python:3.13-slim

RUN useradd --create-home --uid 10001 kokuban

WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --no-compile --root-user-action=ignore . && rm -rf /src/*

USER kokuban
WORKDIR /home/kokuban
ENV PYTHONUNBUFFERED=1

ENTRYPOINT ["kokuban"]
CMD ["--help"]
