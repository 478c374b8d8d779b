"""What packages say they have installed, whatever an agent has made of their lists."""

from __future__ import annotations

import pytest

from hermes_rl.package_records import conffile_md5, packaged_md5, recorded_hash

NOISE = b"\xff\n\n" + b"x" * 300_000 + b'\n"' + b"y" * 15_000 + b"\n\0\n"


@pytest.mark.parametrize("noise", [b"", NOISE])
def test_a_file_is_found_by_any_spelling(noise: bytes) -> None:
    listed = noise + b"abc  bin/ls\n0123  usr/bin/curl\n"
    assert packaged_md5(listed, ["/usr/bin/curl", "/bin/curl"]) == "0123"
    assert packaged_md5(listed, ["/usr/bin/ls", "/bin/ls"]) == "abc"
    assert packaged_md5(listed, ["/usr/bin/wget"]) is None


@pytest.mark.parametrize("noise", [b"", NOISE])
def test_configuration_files_are_in_the_status(noise: bytes) -> None:
    status = noise + b"Package: x\nConffiles:\n /etc/a 11\n /etc/b 22 obsolete\nDescription: y\n"
    assert conffile_md5(status, "/etc/a") == "11"
    assert conffile_md5(status, "/etc/b") == "22"
    assert conffile_md5(status, "/etc") is None


@pytest.mark.parametrize("noise", [b"", NOISE])
def test_a_wheels_record_is_relative_to_its_place(noise: bytes) -> None:
    record = noise + b'../../../bin/pip,sha256=x,10\r\n"a,b.py",sha256=y,2\n'
    site = "/usr/local/lib/python3.11/site-packages"
    assert recorded_hash(record, site, "/usr/local/bin/pip") == "sha256=x"
    assert recorded_hash(record, site, f"{site}/a,b.py") == "sha256=y"
    assert recorded_hash(record, site, "/usr/local/bin/uv") is None
