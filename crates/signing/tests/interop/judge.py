"""What python-tuf's client makes of repositories that were written elsewhere.

    judge.py TRUSTED_ROOT FOLDER NAME [FOLDER NAME ...]

One client opens the name in each folder in turn, as one device would, and prints a line for each:
the image, or "refused".
"""

import os
import sys
import tempfile

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import Updater
from tuf.ngclient.fetcher import FetcherInterface


class FolderFetcher(FetcherInterface):
    def __init__(self, folder):
        self.folder = folder

    def _fetch(self, url):
        path = os.path.join(self.folder, url.rsplit("/", 1)[1])
        if not os.path.exists(path):
            raise DownloadHTTPError("not there", 404)
        with open(path, "rb") as file:
            yield file.read()


with open(sys.argv[1], "rb") as file:
    trusted = file.read()
with tempfile.TemporaryDirectory() as client:
    for folder, name in zip(sys.argv[2::2], sys.argv[3::2]):
        try:
            updater = Updater(client, "http://localhost", fetcher=FolderFetcher(folder), bootstrap=trusted)
            updater.refresh()
            info = updater.get_targetinfo(name)
            print(info.unrecognized_fields["custom"]["runnel"]["id"] if info else "refused")
        except Exception as error:  # noqa: BLE001
            print(folder, type(error).__name__, error, file=sys.stderr)
            print("refused")
