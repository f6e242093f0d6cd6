"""A cable in user space: `lossy_cable.py PERCENT FILE DEVICE DEVICE`, as root, until it is killed.

It sends each frame that arrives at one device out of the other, and drops some frames, which it
counts in the file. Not every kernel can lose packets by itself. It prints a line once it is
connected.
"""

from __future__ import annotations

import random
import select
import socket
import sys

_ALL_PROTOCOLS = 3
# From linux/if_packet.h. With its header a frame retains what the sender has left to the hardware,
# for example the checksum.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_SO_RCVBUFFORCE = 33  # from asm-generic/socket.h
_LARGEST = 1 << 17
_WAITING = 64 << 20  # bytes; only this program is to drop frames


def plug(device: str) -> socket.socket:
    """One end of the cable."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    end.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    end.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _WAITING)
    end.bind((device, _ALL_PROTOCOLS))
    return end


def main(percent: str, file: str, *devices: str) -> None:
    one, other = map(plug, devices)
    towards = {one: other, other: one}
    draw = random.Random(1).random
    share, lost = float(percent) / 100, 0
    with open(file, "w") as count:
        print("plugged in", flush=True)
        while True:
            for end in select.select([one, other], [], [])[0]:
                frame = end.recv(_LARGEST)
                if draw() >= share:
                    towards[end].send(frame)
                    continue
                lost += 1
                count.seek(0)
                print(lost, file=count, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
