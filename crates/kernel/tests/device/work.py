# What the second test device does: the interpreter, extension modules, threads, sockets, files.
import hashlib
import http.client
import http.server
import json
import mmap
import os
import select
import signal
import socket
import sqlite3
import ssl
import tempfile
import threading
import zlib


def say(name, *values):
    print("@@py", name, *values, flush=True)


say("json", json.dumps({"a": [1, 2.5, None], "b": {"c": "ä"}}, sort_keys=True))
say("hash", hashlib.sha256(bytes(range(256)) * 1000).hexdigest()[:16], zlib.crc32(b"x" * 99999))
say("ssl", ssl.create_default_context().check_hostname, len(ssl.RAND_bytes(16)))

base = sqlite3.connect("/data/base.db")
base.execute("create table t(n integer primary key, s text)")
base.executemany("insert into t values(?, ?)", [(i, str(i * i)) for i in range(2000)])
base.commit()
base.execute("delete from t where n % 3 = 0")
base.commit()
say("sqlite", base.execute("select count(*), sum(length(s)) from t").fetchone(), base.execute("pragma integrity_check").fetchone())
base.close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = (self.path * 1000).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
total = hashlib.md5()
for number in range(10):
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    client.request("GET", f"/{number}")
    total.update(client.getresponse().read())
    client.close()
server.shutdown()
say("http", total.hexdigest())

numbers, lock = [], threading.Lock()


def count(start):
    for number in range(start, start + 500):
        with lock:
            numbers.append(number)


threads = [threading.Thread(target=count, args=(i * 500,)) for i in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
say("threads", sum(numbers))

child = os.fork()
if child == 0:
    os._exit(7)
say("fork", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
caught = []
signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
say("signal", caught)
one, other = socket.socketpair()
one.send(b"through")
poll = select.epoll()
poll.register(other, select.EPOLLIN)
say("socket", len(poll.poll(10)), other.recv(100))
with tempfile.NamedTemporaryFile(dir="/tmp") as file:
    file.truncate(1 << 20)
    area = mmap.mmap(file.fileno(), 1 << 20)
    area[5000:5006] = b"mapped"
    area.flush()
    file.seek(5000)
    say("map", file.read(6), os.stat(file.name).st_size)
say("tree", len([name for folder in os.walk("/usr/lib/python3.11/json") for name in folder[2]]) > 3)
with open("/data/result", "w") as file:
    file.write("written\n")
    os.fsync(file.fileno())
say("end")
