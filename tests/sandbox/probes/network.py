"""Programs that look for a way out: addresses, names, odd families, sockets of the host."""

from __future__ import annotations

from flowzoo.sandbox.attacks.probes import AttackProbe, stdin

PROBES: tuple[AttackProbe, ...] = (
    stdin("network", "datagrams", "AC", """
        import socket
        def udp():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                return out.sendto(b"x", ("127.0.0.1", @PORT@))
        tries(udp)
        """, reaches=True, control=True),
    stdin("network", "names", "AC TLE RE", """
        import socket
        def resolve():
            for info in socket.getaddrinfo("example.com", 80):
                return info
        tries(resolve)
        """, reaches=True, harmful=True),
    stdin("network", "names by hand", "AC", """
        import socket
        query = bytes.fromhex("123401000001000000000000076578616d706c6503636f6d0000010001")
        def ask():
            servers = ["192.0.2.53"]
            try:
                servers += [line.split()[1] for line in open("/etc/resolv.conf")
                            if line.startswith("nameserver")]
            except OSError:
                pass
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.settimeout(0.2)
                for server in servers:
                    out.sendto(query, (server, 53))
                return out.recv(512)
        tries(ask)
        """, reaches=True, harmful=True),
    stdin("network", "listens", "AC", """
        import socket
        def listen():
            server = socket.socket()
            server.bind(("0.0.0.0", 0))
            server.listen()
            client = socket.create_connection(server.getsockname(), 0.3)
            return client.getpeername()
        tries(listen)
        """, reaches=True, control=True),
    stdin("network", "odd families", "AC", """
        import socket
        made = []
        for family in (16, 17, 10, 38, 40, 31, 29, 44, 39, 9, 4, 3, 5):
            for kind in (1, 2, 3, 5):
                try:
                    socket.socket(family, kind, 0).close()
                except OSError:
                    continue
                made.append((family, kind))
        print("leak", made) if made else print(n + 1)
        """, reaches=True, control=True),
    stdin("network", "kernel crypto and netlink", "AC", """
        import socket
        def alg():
            with socket.socket(38, socket.SOCK_SEQPACKET) as s: s.bind(("hash", "sha256"))
        def netlink():
            with socket.socket(16, socket.SOCK_RAW, 0) as s: s.bind((0, 0))
        def vsock():
            with socket.socket(40, socket.SOCK_STREAM) as s:
                s.settimeout(0.2)
                s.connect((2, 1))
        tries(alg, netlink, vsock)
        """, reaches=True, control=True),
    stdin("network", "raw packets", "AC", """
        import socket
        def raw(): socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
        def packet(): socket.socket(17, socket.SOCK_RAW, socket.ntohs(3)).close()
        def ping(): socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
        tries(raw, packet, ping)
        """, reaches=True, control=True),
    stdin("network", "libraries that open connections", "AC", """
        import urllib.request, http.client, smtplib, ftplib
        def url(): return urllib.request.urlopen("http://127.0.0.1:@PORT@/", timeout=0.2)
        def mail(): return smtplib.SMTP("127.0.0.1", @PORT@, timeout=0.2)
        def web():
            connection = http.client.HTTPConnection("127.0.0.1", @PORT@, timeout=0.2)
            connection.connect()
        tries(web, url, mail)
        """, reaches=True, control=True),
)  # fmt: skip
