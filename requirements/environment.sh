# Sourced by ./run and ./test. environment LOCK: afterwards .venv holds what requirements/LOCK.txt pins, and $python runs it.
# The fast path (nothing changed) calls no Python and no pip.

find_python() {
  old=""; bare=""
  for name in "${QUEENMQ_PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11 python; do
    version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { old=${old:-"$name is $version"}; continue; }
    "$name" -c 'import venv, ensurepip' 2>/dev/null || { bare=${bare:-"$name ($version)"}; continue; }
    echo "$name"; return 0
  done
  if [ -n "$bare" ]; then
    echo "queenmq: $bare has no venv module. Install it (on Debian and Ubuntu: apt install python3-venv) and start again." >&2
  elif [ -n "$old" ]; then
    echo "queenmq: Python 3.11 or later is needed; $old. Install a newer one, or name it: QUEENMQ_PYTHON=/path/to/python3.12 $0" >&2
  else
    echo "queenmq: no Python found. Install Python 3.11 or later, or name it: QUEENMQ_PYTHON=/path/to/python3.12 $0" >&2
  fi
  return 1
}

environment() {
  unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
  python="$here/.venv/bin/python"
  stamp="$here $(cat "$here"/requirements/*.txt | cksum)"
  if [ -x "$python" ] && read -r ready 2>/dev/null <"$here/.venv/ready-$1" && [ "$ready" = "$stamp" ]; then return 0; fi
  found=$(find_python) || exit 1
  "$found" "$here/requirements/prepare.py" "$1" "$stamp" || exit 1
}
