"""A foreign agent that knows nothing of Kokuban: reads its order, asks OpenAI's API, writes a file."""

import json
import os
import pathlib
import sys
import urllib.request

order = json.loads(pathlib.Path(os.environ["KOKUBAN_ORDER"]).read_text())
print(f"working on {order['goal']}", flush=True)


def ask(text: str) -> str:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


plan = ask("What is to be changed? " + order["checks_say"])
code = ask("Write calc.py. " + plan)
if "wait" in sys.argv:
    pathlib.Path(os.environ["HOME"], "waits").touch()
    sys.stdin.read()
    while True:
        pass
pathlib.Path("calc.py").write_text(code)
print("done")
