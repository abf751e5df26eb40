"""Repositories made by python-tuf, and what python-tuf's own client makes of them.

    repositories.py FOLDER

Each case is a folder below FOLDER with a trusted root (`trusted.json`) and one folder for each
answer of a server (`0`, `1`, ...), in the layout of a TUF repository with consistent snapshots.
Prints one JSON object for each answer: case, answer, the name to open, the image that python-tuf's
client accepts or null, the image or the kind of refusal that ours must give, whether both must
agree, and the hash bin of the name or null. They differ on purpose in two points: python-tuf keeps a new timestamp whatever follows it,
and takes the last of two equal keys.
"""

import copy
import datetime
import hashlib
import json
import os
import sys
import tempfile

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import DownloadHTTPError
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    MetaFile,
    Role,
    Root,
    Snapshot,
    SuccinctRoles,
    TargetFile,
    Targets,
    Timestamp,
)
from tuf.api.serialization.json import JSONSerializer
from tuf.ngclient import Updater
from tuf.ngclient.fetcher import FetcherInterface

NOW = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
DAY = datetime.timedelta(days=1)
TOP = ["root", "timestamp", "snapshot", "targets"]


def image(number):
    return "%064x" % number


def target(name, number):
    custom = {"runnel": {"id": image(number)}}
    digest = hashlib.sha256(image(number).encode()).hexdigest()
    return TargetFile(4096 + number, {"sha256": digest}, name, {"custom": custom})


class Repository:
    """Metadata that are not signed yet, and the keys that will sign them."""

    def __init__(self):
        self.signers = {role: [CryptoSigner.generate_ed25519()] for role in TOP}
        self.root = Root(expires=NOW + 365 * DAY, consistent_snapshot=True)
        self.timestamp = Timestamp(expires=NOW + DAY)
        self.snapshot = Snapshot(expires=NOW + 7 * DAY)
        self.roles = {"targets": Targets(expires=NOW + 30 * DAY)}
        self.roles["targets"].targets["app:1"] = target("app:1", 1)
        self.roots = {}
        self.compact = True
        self.hashes = True
        self.old_root_signers = []
        for role in TOP:
            self.root.add_key(self.signers[role][0].public_key, role)
        self.keep_root()

    def keep_root(self):
        signers = self.signers["root"] + self.old_root_signers
        self.roots[self.root.version] = self.sign(self.root, signers)

    def rotate(self, role, count=1, threshold=1):
        """The next root, with new keys for a role."""
        if role == "root":
            self.old_root_signers = self.signers["root"]
        for key_id in list(self.root.roles[role].keyids):
            self.root.revoke_key(key_id, role)
        self.signers[role] = [CryptoSigner.generate_ed25519() for _ in range(count)]
        for signer in self.signers[role]:
            self.root.add_key(signer.public_key, role)
        self.root.roles[role].threshold = threshold
        self.root.version += 1
        self.keep_root()
        self.old_root_signers = []

    def delegate(self, parent, name, terminating=False, paths=None, prefixes=None):
        signer = CryptoSigner.generate_ed25519()
        self.signers[name] = [signer]
        self.roles[name] = Targets(expires=NOW + 30 * DAY)
        delegated = DelegatedRole(name, [], 1, terminating, paths, prefixes)
        if self.roles[parent].delegations is None:
            self.roles[parent].delegations = Delegations({}, {})
        self.roles[parent].delegations.roles[name] = delegated
        self.roles[parent].add_key(signer.public_key, name)
        return self.roles[name]

    def sign(self, signed, signers):
        metadata = Metadata(signed)
        for signer in signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes(JSONSerializer(compact=self.compact))

    def entry(self, version, data):
        if not self.hashes:
            return MetaFile(version)
        return MetaFile(version, len(data), {"sha256": hashlib.sha256(data).hexdigest()})

    def files(self):
        """The files of a server, by name."""
        files = {"%d.root.json" % version: data for version, data in self.roots.items()}
        meta = {}
        for name, role in self.roles.items():
            data = self.sign(role, self.signers[name])
            files["%d.%s.json" % (role.version, name)] = data
            meta[name + ".json"] = self.entry(role.version, data)
        self.snapshot.meta = meta
        data = self.sign(self.snapshot, self.signers["snapshot"])
        files["%d.snapshot.json" % self.snapshot.version] = data
        self.timestamp.snapshot_meta = self.entry(self.snapshot.version, data)
        files["timestamp.json"] = self.sign(self.timestamp, self.signers["timestamp"])
        return files

    def publish(self, *roles):
        """Raises the versions of roles, snapshot and timestamp; returns the files."""
        for role in roles:
            self.roles[role].version += 1
        self.snapshot.version += 1
        self.timestamp.version += 1
        return self.files()


class LocalFetcher(FetcherInterface):
    """Reads from a dict of files."""

    def __init__(self, files):
        self.files = files

    def _fetch(self, url):
        name = url.rsplit("/", 1)[1]
        if name not in self.files:
            raise DownloadHTTPError("not there", 404)
        yield self.files[name]


class Cases:
    def __init__(self, folder):
        self.folder = folder

    def add(self, case, trusted, answers, bin_of=lambda name: None):
        """Answers are (files, name, expected, whether both agree): an image's number or a kind."""
        with tempfile.TemporaryDirectory() as client:
            for number, (files, name, expected, *agree) in enumerate(answers):
                folder = os.path.join(self.folder, case, str(number))
                os.makedirs(folder)
                for file, data in list(files.items()) + [("../trusted.json", trusted)]:
                    with open(os.path.join(folder, file), "wb") as out:
                        out.write(data)
                accepted = None
                try:
                    updater = Updater(client, "http://localhost", fetcher=LocalFetcher(files), bootstrap=trusted)
                    updater.refresh()
                    info = updater.get_targetinfo(name)
                    if info is not None:
                        accepted = info.unrecognized_fields["custom"]["runnel"]["id"]
                except Exception as error:  # noqa: BLE001
                    print(case, number, type(error).__name__, error, file=sys.stderr)
                if isinstance(expected, int):
                    expected = image(expected)
                line = {"case": case, "answer": number, "name": name, "python": accepted, "expected": expected}
                print(json.dumps(dict(line, agree=agree != [False], bin=bin_of(name))))


def changed(files, name, data):
    files = dict(files)
    files[name] = data
    return files


def good(cases):
    for compact in [True, False]:
        for hashes in [True, False]:
            repository = Repository()
            repository.compact, repository.hashes = compact, hashes
            repository.roles["targets"].unrecognized_fields["x-text"] = {
                "control": "\n\t\u0007\u007f",
                "escaped": '"\\/',
                "other": "äöü 漢字 🚀",
                "numbers": [0, -1, 2**53, 2**64 - 1],
                "rest": [True, False, None, [], {}, ""],
            }
            first = repository.files()
            repository.roles["targets"].targets["app:1"] = target("app:1", 2)
            cases.add(
                "good-%d%d" % (compact, hashes),
                repository.roots[1],
                [
                    (first, "app:1", 1),
                    (first, "app:1", 1),
                    (repository.publish("targets"), "app:1", 2),
                    (first, "app:1", "rollback"),
                ],
            )


def rotation(cases):
    repository = Repository()
    first = repository.files()
    for round_number in range(6):
        repository.rotate("root", 3, 2)
        repository.rotate(TOP[1 + round_number % 3], 2, 2)
    last = repository.publish("targets")
    cases.add("rotation", repository.roots[1], [(first, "app:1", 1), (last, "app:1", 1), (last, "app:2", "not-found")])
    cases.add("rotation-first", repository.roots[1], [(last, "app:1", 1)])
    cases.add("rotation-missed", repository.roots[5], [(last, "app:1", 1)])
    gap = {name: data for name, data in last.items() if name != "5.root.json"}
    cases.add("rotation-gap", repository.roots[1], [(gap, "app:1", "missing")])


def thresholds(cases):
    repository = Repository()
    repository.rotate("snapshot", 3, 2)
    repository.rotate("targets", 3, 3)
    trusted = repository.roots[3]
    cases.add("threshold", trusted, [(repository.files(), "app:1", 1)])
    for role, count in [("snapshot", 1), ("targets", 2), ("snapshot", 0)]:
        fewer = copy.copy(repository)
        fewer.signers = dict(repository.signers)
        fewer.signers[role] = repository.signers[role][:count]
        cases.add("threshold-%s-%d" % (role, count), trusted, [(fewer.files(), "app:1", "signature")])


def delegations(cases):
    repository = Repository()
    one = repository.delegate("targets", "one", paths=["lib:*", "x?:*"])
    one.targets["lib:1"] = target("lib:1", 11)
    one.targets["evil:1"] = target("evil:1", 66)
    two = repository.delegate("targets", "two", terminating=True, paths=["lib:*", "y:*"])
    two.targets["lib:1"] = target("lib:1", 12)
    two.targets["lib:2"] = target("lib:2", 22)
    three = repository.delegate("targets", "three", paths=["*"])
    three.targets["y:1"] = target("y:1", 31)
    three.targets["z:1"] = target("z:1", 32)
    inner = repository.delegate("one", "inner", prefixes=[hashlib.sha256(b"xa:9").hexdigest()[:5]])
    inner.targets["xa:9"] = target("xa:9", 41)
    files = repository.files()
    names = [("app:1", 1), ("lib:1", 11), ("lib:2", 22), ("evil:1", "not-found"), ("y:1", "not-found")]
    names += [("z:1", 32), ("xa:9", 41), ("xa:8", "not-found")]
    cases.add("delegations", repository.roots[1], [(files, name, expected) for name, expected in names])
    stranger = copy.copy(repository)
    stranger.signers = dict(repository.signers, one=[CryptoSigner.generate_ed25519()])
    cases.add("delegations-key", repository.roots[1], [(stranger.files(), "lib:1", "signature")])
    missing = {name: data for name, data in files.items() if name != "1.one.json"}
    cases.add("delegations-missing", repository.roots[1], [(missing, "lib:2", "missing")])


def bins(cases):
    for bits in [1, 5, 8]:
        repository = Repository()
        signer = CryptoSigner.generate_ed25519()
        succinct = SuccinctRoles([], 1, bits, "bin")
        targets = repository.roles["targets"]
        targets.delegations = Delegations({}, None, succinct)
        targets.add_key(signer.public_key)
        for name in succinct.get_roles():
            repository.roles[name] = Targets(expires=NOW + 30 * DAY)
            repository.signers[name] = [signer]
        answers = []
        for number in range(8):
            name = "lib:%d" % number
            repository.roles[succinct.get_role_for_target(name)].targets[name] = target(name, 100 + number)
            answers.append((name, 100 + number))
        files = repository.files()
        answers.append(("lib:none", "not-found"))
        answers = [(files, name, expected) for name, expected in answers]
        cases.add("bins-%d" % bits, repository.roots[1], answers, succinct.get_role_for_target)


def attacks(cases):
    repository = Repository()
    repository.delegate("targets", "lib", paths=["lib:*"]).targets["lib:1"] = target("lib:1", 7)
    trusted = repository.roots[1]
    old = repository.files()
    repository.publish("targets", "lib")
    new = repository.publish("targets", "lib")

    def case(name, expected, change, agree=True):
        other = copy.deepcopy({key: value for key, value in vars(repository).items() if key != "signers"})
        attacker = Repository()
        attacker.__dict__.update(other)
        attacker.signers = dict(repository.signers)
        attacker.timestamp.version += 1
        files = change(attacker)
        answers = [(new, "lib:1", 7), (files, "lib:1", expected, agree), (new, "lib:1", 7, False)]
        cases.add(name, trusted, answers)

    def set_version(part, version):
        def change(attacker):
            role = attacker.roles.get(part) or getattr(attacker, part)
            if part in attacker.roles:
                attacker.snapshot.version += 1
            role.version = version
            return attacker.files()

        return change

    case("rollback-timestamp", "rollback", set_version("timestamp", 2))
    case("rollback-snapshot", "rollback", set_version("snapshot", 2))
    case("rollback-targets", "rollback", set_version("targets", 2))
    case("rollback-delegated", "rollback", set_version("lib", 2))
    case("replay", "rollback", lambda _: old)

    def removed(attacker):
        del attacker.roles["lib"]
        attacker.snapshot.version += 1
        return attacker.files()

    case("removed-role", "rollback", removed)

    def expired(part):
        def change(attacker):
            role = attacker.roles.get(part) or getattr(attacker, part)
            attacker.snapshot.version += 1
            attacker.roles["targets"].version += 1
            attacker.roles["lib"].version += 1
            role.expires = NOW - DAY
            return attacker.files()

        return change

    case("freeze", "freeze", expired("timestamp"))
    for part in ["snapshot", "targets", "lib"]:
        case("expired-" + part, "expired", expired(part))
    for hashes in [True, False]:
        for part in ["targets", "lib"]:

            def mixed(attacker):
                attacker.hashes = hashes
                files = attacker.publish("targets", "lib")
                return changed(files, "4.%s.json" % part, old["1.%s.json" % part])

            case("mixed-%s-%d" % (part, hashes), "mixed", mixed)
    case("mixed-snapshot", "mixed", lambda a: changed(a.publish("lib"), "4.snapshot.json", old["1.snapshot.json"]))
    case("cut", "damaged", lambda a: changed(a.files(), "timestamp.json", a.files()["timestamp.json"][:-1]))
    twice = b'{"signatures":[],"signatures":[],'

    def same_key_twice(attacker):
        files = attacker.files()
        return changed(files, "timestamp.json", files["timestamp.json"].replace(b"{", twice, 1))

    case("twice", "damaged", same_key_twice, agree=False)


def fast_forward(cases):
    repository = Repository()
    trusted = repository.roots[1]
    repository.snapshot.version, repository.roles["targets"].version = 1000, 1000
    forwarded = repository.publish()
    repository.snapshot.version, repository.roles["targets"].version = 2, 2
    stuck = repository.publish()
    repository.rotate("snapshot")
    repository.rotate("timestamp")
    recovered = repository.publish()
    answers = [(forwarded, "app:1", 1), (stuck, "app:1", "rollback"), (recovered, "app:1", 1)]
    cases.add("fast-forward", trusted, answers)


def main():
    cases = Cases(sys.argv[1])
    for make in [good, rotation, thresholds, delegations, bins, attacks, fast_forward]:
        make(cases)


if __name__ == "__main__":
    main()
