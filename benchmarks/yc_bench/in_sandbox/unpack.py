"""Unpack an archive. Usage: unpack.py ARCHIVE DIRECTORY."""

import sys
import tarfile


def main(archive, directory):
    """Unpack it, with a filter where this Python has one."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(directory, filter="data")
        else:
            tar.extractall(directory)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
