"""One server or three in a cluster on loopback, as `docs/cluster.md` says, to kill and start again."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from kokuban.blackboard.wire import Bus
from kokuban.blackboard.wire.embedded import ServerBinary, die_with_parent
from support.processes import KILL_SECONDS

DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"


class Nodes:
    """Real server processes. Numbers count from 0."""

    def __init__(self, count: int, folder: Path, binary: ServerBinary) -> None:
        self.count = count
        self._folder = folder
        self._binary = binary
        self._ports = free_ports(2 * count)
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        for n in range(count):
            self.start(n)

    @property
    def replicas(self) -> int:
        return self.count

    @property
    def url(self) -> str:
        """Of the first that runs."""
        n = next(n for n, process in enumerate(self._processes) if process is not None)
        return f"nats://127.0.0.1:{self._ports[n]}"

    def start(self, n: int) -> None:
        """Start it, on its own store, if it does not run."""
        if self._processes[n] is not None:
            return
        home = self._folder / f"n{n + 1}"
        home.mkdir(parents=True, exist_ok=True)
        (home / "server.conf").write_text(self._configuration(n, home))
        self._processes[n] = subprocess.Popen(
            [self._binary.path, "-c", "server.conf", "-l", "server.log"], cwd=home,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )  # fmt: skip

    def start_all(self) -> None:
        for n in range(self.count):
            self.start(n)

    def kill(self, n: int) -> None:
        """kill -9."""
        process, self._processes[n] = self._processes[n], None
        if process is not None:
            process.kill()
            process.wait(KILL_SECONDS)

    def kill_all(self) -> None:
        for n in range(self.count):
            self.kill(n)

    async def kill_leader(self, bus: Bus, stream: str = "BOARD") -> int:
        """Kill the server that leads the stream; its number."""
        info = await bus.api(f"STREAM.INFO.{stream}")
        n = int(info["cluster"]["leader"][1:]) - 1 if self.count > 1 else 0
        self.kill(n)
        return n

    async def served(self, seconds: float = 30) -> None:
        """Wait until all of them are in place and there is a leader for what is asked."""
        give_up = time.monotonic() + seconds
        while True:
            try:
                async with await Bus.connect(self.url, timeout=2) as bus:
                    name = "probe"
                    config = {"name": name, "subjects": [name], "num_replicas": self.replicas, "storage": "memory"}
                    await bus.api(f"STREAM.CREATE.{name}", config, timeout=2)
                    await bus.api(f"STREAM.DELETE.{name}", timeout=2)
                    return
            except Exception:
                if time.monotonic() > give_up:
                    raise

    async def settled(self, bus: Bus, stream: str = "BOARD") -> None:
        """Wait until all have all of the stream: a reader may be served by one that came back and is still behind."""
        while self.count > 1:
            cluster = (await bus.patiently(lambda: bus.api(f"STREAM.INFO.{stream}")))["cluster"]
            others = cluster.get("replicas") or []
            if len(others) == self.count - 1 and all(o.get("current") and not o.get("lag") for o in others):
                return
            await asyncio.sleep(0.05)

    async def wipe(self) -> None:
        """Take every stream away."""
        async with await Bus.connect(self.url) as bus:
            for name in (await bus.api("STREAM.NAMES"))["streams"] or []:
                await bus.api(f"STREAM.DELETE.{name}")

    def _configuration(self, n: int, home: Path) -> str:
        """The documented file, with this server's name, ports of loopback and a folder of its own."""
        found = re.search(r"```\n(server_name.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
        assert found is not None
        text = found[1].replace("server_name: n1", f"server_name: n{n + 1}")
        text = text.replace("0.0.0.0:4222", f"127.0.0.1:{self._ports[n]}").replace("/data", str(home / "store"))
        if self.count == 1:
            return text[: text.index("cluster {")]
        text = text.replace("0.0.0.0:6222", f"127.0.0.1:{self._ports[self.count + n]}")
        for other in range(self.count):
            text = text.replace(f"nats://n{other + 1}:6222", f"nats://127.0.0.1:{self._ports[self.count + other]}")
        return text


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
