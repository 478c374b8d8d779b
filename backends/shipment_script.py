"""The shell script that takes our interpreter where there is no python3.

Plain POSIX sh; of other programs it needs those in :data:`TOOLS`, which coreutils and busybox
have. It is read from standard input, and so is what it asks for, so no byte of either may be sent
before it was asked for: ``head`` may read ahead. Its answers are lines on standard output:

``tools NAMES``    these programs are missing
``machine NAME``   another kind of processor
``place REASONS``  no directory takes a program and lets it run
``send gzip|plain``  now send the bundle; another line follows
``write DIR``      the bundle could not be written completely
``torn``           what came is not what was sent
``broken CODE``    the interpreter does not run here
``done DIR``       it is there, whole; if an outpost is to be started, its options and source follow

An interpreter that is there already is used if every byte of it is as it should be. Otherwise the
new one is made beside it, compared, and appears by one rename, which it does itself: there is no
portable other way to rename a directory to a name that another may take at the same time.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "TABLE", "TOOLS"]

TOOLS = ("cat", "chmod", "head", "id", "mkdir", "mv", "rm", "sha256sum", "tail", "touch", "uname")
"""gzip is used where there is one."""
TABLE = "files"
"""File of an interpreter that is there: its other files with their sizes."""

SCRIPT = r"""
say() { printf '%s\n' "$*"; }
scratch=
clean() { [ -z "$scratch" ] || rm -rf "$scratch"; }
end() { clean; say "$@"; exit 3; }
lacking=
for tool in $tools; do
  command -v "$tool" >/dev/null 2>&1 || lacking="$lacking $tool"
done
[ -z "$lacking" ] || end "tools$lacking"
here=$(uname -m)
[ "$here" = "$machine" ] || end "machine $here"

is_whole() {
  sum=$({
    cd "$1" && set -- && while read -r size mode name; do set -- "$@" "$name"; done <files &&
      cat files "$@"
  } 2>/dev/null | sha256sum)
  [ "${sum%% *}" = "$digest" ]
}

is_usable() {
  why='cannot be made'
  (umask 077 && mkdir -p "$1") 2>/dev/null || return 1
  why="is not a directory of this user's"
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && chmod 700 "$1" 2>/dev/null || return 1
  why='cannot be written to'
  mkdir "$1/$scratch_name" 2>/dev/null || return 1
  why='lets no program run (mounted noexec?)'
  printf '#!/bin/sh\n' >"$1/$scratch_name/try" && chmod 700 "$1/$scratch_name/try" &&
    "$1/$scratch_name/try" </dev/null 2>/dev/null && return 0
  rm -rf "$1/$scratch_name"
  return 1
}

refused= chosen=
trap clean EXIT
trap 'exit 1' HUP INT PIPE TERM
for base in "$@"; do
  case $base in
    /*) ;;
    '~' | '~/'*) base=$HOME${base#?} ;;
    *) base=$PWD/$base ;;
  esac
  if is_usable "$base"; then
    chosen=$base
    break
  fi
  refused="$refused; $base $why"
done
[ -n "$chosen" ] || end "place ${refused#; }"
scratch=$chosen/$scratch_name
target=$chosen/$name
new=$scratch/new

receive() {
  case $1 in
    gzip) head -c "$packed_bytes" | gzip -dc ;;
    *) head -c "$plain_bytes" ;;
  esac
}

unpack() {
  mkdir "$new" && head -c "$table_bytes" "$scratch/bundle" >"$new/files" || return 1
  at=$((table_bytes + 1))
  while read -r size mode name; do
    case $name in
      */*) [ -d "$new/${name%/*}" ] || mkdir -p "$new/${name%/*}" || return 1 ;;
    esac
    tail -c "+$at" "$scratch/bundle" 2>/dev/null | head -c "$size" >"$new/$name" || return 1
    [ "$mode" = r ] || chmod 755 "$new/$name" || return 1
    at=$((at + size))
  done <"$new/files"
  is_whole "$new"
}

appear() {
  "$new/$loader" --library-path "$new/lib" "$new/bin/python3" -ISu -Xutf8 -c "$rename" \
    "$new" "$target" </dev/null
}

umask 022
if ! is_whole "$target"; then
  form=plain
  command -v gzip >/dev/null 2>&1 && form=gzip
  say "send $form"
  receive "$form" >"$scratch/bundle" || end "write $chosen"
  sum=$(sha256sum <"$scratch/bundle")
  [ "${sum%% *}" = "$digest" ] || end torn
  unpack || end "write $chosen"
  appear
  code=$?
  if [ "$code" = 9 ] && ! is_whole "$target"; then
    mv "$target" "$scratch/old" && appear
    code=$?
    [ "$code" != 9 ] || ! is_whole "$target" || code=0
  elif [ "$code" = 9 ]; then
    code=0
  fi
  [ "$code" = 0 ] || end "broken $code"
fi
clean
scratch=
touch "$target"
say "done $target"
"""
"""Wants ``tools``, ``machine``, ``name``, ``loader``, ``digest``, ``table_bytes``,
``packed_bytes``, ``plain_bytes``, ``scratch_name`` and ``rename`` set, and the directories that
may be used, best first, as arguments. Leaves ``target``."""
