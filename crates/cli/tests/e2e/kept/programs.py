"""One program on a mounted volume, until its input ends: NAME FOLDER.

Each checks that every call succeeds, that nothing is done twice, and that what was acknowledged is
there. It tells how much it has done, and the longest time that one round took, in milliseconds.
"""
import ctypes, fcntl, os, random, select, shutil, sqlite3, subprocess, sys, time


def expect(error, call, *arguments):
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments} was done twice")


def database(path, *pragmas):
    """Inserts rows, each in a transaction of its own."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    for pragma in pragmas:
        connection.execute(f"pragma {pragma}").fetchall()
    connection.execute("create table t(k integer primary key, v text)")
    count = 0
    while True:
        connection.execute("insert into t values(?, hex(randomblob(300)))", (count,))
        count += 1
        if count % 50 == 0:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        found = connection.execute("select count(*), max(k) from t").fetchall()
        assert found == [(count, count - 1)], (found, count)
        yield


def rollback(folder):
    yield from database(folder + "/rollback.db", "journal_mode=delete")


def wal(folder):
    yield from database(folder + "/wal.db", "locking_mode=exclusive", "journal_mode=wal")


def append(folder):
    """Appends lines; large ones among them do not fit into a place for short requests."""
    path, expected = folder + "/appended", []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count = 0
    while True:
        line = b"%d %s\n" % (count, b"x" * random.choice([1, 100, 1000, 60000]))
        assert os.write(file, line) == len(line)
        expected.append(line)
        count += 1
        if count % 20 == 0:
            os.fsync(file)
        if count % 100 == 0:
            with open(path, "rb") as whole:
                assert whole.read() == b"".join(expected), "appended bytes differ"
            os.ftruncate(file, 0)
            expected = []
        yield


def names(folder):
    """Makes, renames and removes; each again must fail."""
    top = folder + "/names"
    os.mkdir(top)
    while True:
        a, b = top + "/a", top + "/b" + "n" * 200
        os.mkdir(a)
        expect(FileExistsError, os.mkdir, a)
        os.rename(a, b)
        expect(FileNotFoundError, os.rename, a, b)
        file = os.open(b + "/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(file, b"content")
        os.close(file)
        expect(FileExistsError, os.open, b + "/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.link(b + "/new", b + "/link")
        expect(FileExistsError, os.link, b + "/new", b + "/link")
        os.symlink("target", b + "/symlink")
        assert os.readlink(b + "/symlink") == "target"
        os.rename(b + "/new", b + "/renamed")
        with open(b + "/renamed", "rb") as file:
            assert file.read() == b"content" and os.fstat(file.fileno()).st_nlink == 2
        os.setxattr(b + "/renamed", "user.x", b"value", os.XATTR_CREATE)
        assert os.getxattr(b + "/renamed", "user.x") == b"value"
        os.removexattr(b + "/renamed", "user.x")
        for name in ["renamed", "link", "symlink"]:
            os.unlink(b + "/" + name)
        expect(FileNotFoundError, os.unlink, b + "/link")
        assert os.listdir(b) == []
        os.rmdir(b)
        expect(FileNotFoundError, os.rmdir, b)
        yield


def locks(folder, number):
    """Adds to a counter that other programs add to."""
    file = os.open(folder + "/counter", os.O_RDWR | os.O_CREAT)
    lock = fcntl.flock if number == 0 else fcntl.lockf
    mine = 0
    while True:
        # Both kinds, so that all exclude each other.
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        counts = [int(text) for text in os.pread(file, 1000, 0).split()] or [0, 0]
        assert counts[number] == mine, (counts, mine)
        counts[number] += 1
        mine += 1
        text = b"%d %d\n" % tuple(counts)
        assert os.pwrite(file, text, 0) == len(text)
        fcntl.lockf(file, fcntl.LOCK_UN)
        fcntl.flock(file, fcntl.LOCK_UN)
        yield


def flock(folder):
    yield from locks(folder, 0)


def lockf(folder):
    yield from locks(folder, 1)


def tree(folder):
    """Makes a tree, finds all of it, and removes it."""
    top = folder + "/tree"
    while True:
        expected = {top}
        for one in range(6):
            os.makedirs(f"{top}/{one}/x")
            expected |= {f"{top}/{one}", f"{top}/{one}/x"}
            for two in range(25):
                path = f"{top}/{one}/x/{two:0100}"
                with open(path, "w") as file:
                    file.write(path)
                expected.add(path)
        found = subprocess.run(["find", top], stdout=subprocess.PIPE, check=True).stdout.decode().split()
        assert len(found) == len(set(found)) and set(found) == expected
        subprocess.run(["rm", "-r", top], check=True)
        assert not os.path.exists(top)
        yield


def nameless(folder):
    """Uses files that have no name any more."""
    while True:
        path = folder + "/nameless"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.write(file, b"before")
        os.unlink(path)
        content = bytearray(b"before")
        for _ in range(20):
            part = os.urandom(random.choice([10, 5000, 100000]))
            at = random.randrange(len(content) + 1)
            assert os.pwrite(file, part, at) == len(part)
            content[at:at + len(part)] = part
            assert os.fstat(file).st_size == len(content) and os.fstat(file).st_nlink == 0
            assert os.pread(file, 4096, at) == content[at:at + 4096]
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(file, len(content), 0) == content
        os.close(file)
        yield


def overwrite(folder):
    """Writes parts of a file, which is read past the page cache and compared."""
    path, content = folder + "/overwritten", bytearray(1 << 20)
    with open(path, "wb") as file:
        file.write(content)
    file = os.open(path, os.O_RDWR)
    while True:
        for _ in range(30):
            part = os.urandom(random.choice([1, 300, 4096, 131072]))
            at = random.randrange(len(content) - len(part))
            assert os.pwrite(file, part, at) == len(part)
            content[at:at + len(part)] = part
        if random.random() < 0.3:
            os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        found = b"".join(os.pread(file, 1 << 17, at) for at in range(0, len(content), 1 << 17))
        assert found == content, "bytes differ"
        if random.random() < 0.2:
            file, before = os.open(path, os.O_RDWR), file
            os.close(before)
        yield


program = globals()[sys.argv[1]](sys.argv[2])
print("begins", flush=True)
count, longest = 0, 0
while not select.select([sys.stdin], [], [], 0)[0]:
    begun = time.monotonic()
    next(program)
    count, longest = count + 1, max(longest, time.monotonic() - begun)
print(count, round(longest * 1000))
