"""Which addresses a fetch may connect to. Every address that a name has is judged, in whatever form it is written."""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_SHARED = ipaddress.ip_network("100.64.0.0/10")


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside a mapped, compatible, NAT64, 6to4 or Teredo one; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _LOCAL_NAT64 or int(address) >> 32 == 0:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(text: str) -> bool:
    """Whether a resolved address is one of the internet's. What cannot be read is not."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    inner = unwrapped(address)
    outer_fits = address.is_global or inner is not address
    return (
        outer_fits
        and inner.is_global
        and not inner.is_multicast
        and not inner.is_reserved
        and not (isinstance(inner, IPv4Address) and inner in _SHARED)
        and not (isinstance(inner, IPv6Address) and inner.is_site_local)
    )
