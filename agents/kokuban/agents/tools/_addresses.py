"""Which addresses a fetch may connect to. Every address that a name has is judged, in whatever form it is written."""

from __future__ import annotations

import ipaddress
import socket
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
_NATS = 4222
_BESIDE_NATS = (8222, 6222)
"""Where a NATS server shows its state and talks to its cluster, unless it was told otherwise."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
_SHARED = ipaddress.ip_network("100.64.0.0/10")


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside a mapped, NAT64 or 6to4 one; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address


def place(address: str, port: int) -> str:
    """An address and a port in the one form in which they are compared; '' for what is no address."""
    try:
        return f"{unwrapped(ipaddress.ip_address(address.partition('%')[0]))}:{port}"
    except ValueError:
        return ""


def places(*urls: str) -> tuple[str, ...]:
    """Host and port of servers, as `ToolContext.protected` has them."""
    found = []
    for url in urls:
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            host, port = parts.hostname or "localhost", parts.port
        except ValueError:  # no address, so nothing is there
            continue
        port = port or _PORTS.get(parts.scheme, _NATS)
        found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return tuple(dict.fromkeys(found))


def bus_places(*urls: str) -> tuple[str, ...]:
    """As `places`, with the ports that NATS servers usually have beside that of their clients. Several servers may be
    given in one text, with commas."""
    found = places(*(one.strip() for url in urls for one in url.split(",") if one.strip()))
    beside = [f"{place.rpartition(':')[0]}:{port}" for place in found for port in _BESIDE_NATS]
    return tuple(dict.fromkeys((*found, *beside)))


def is_own(text: str) -> bool:
    """Whether an address is one of this machine's: what listens here on all of them is reached by any."""
    try:
        address = unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # the system allows that for its own addresses alone
    except OSError:
        return False
    return True


def is_public(text: str) -> bool:
    """Whether a resolved address is one of the internet's. What cannot be read is not, nor are IPv6 addresses outside
    of global unicast, in which other forms of IPv4 ones (Teredo, local NAT64, compatible, translated) could hide."""
    try:
        address = unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST and address.is_global and not address.is_reserved
    return address.is_global and not (address.is_multicast or address.is_reserved or address in _SHARED)
